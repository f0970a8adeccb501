# SPDX-License-Identifier: Apache-2.0
"""`contract`: keeps the list of what we rely on in vLLM, and checks cores against it.

collect reads this package's source, fetch gets a core's source archive through pip, commands says.
"""
