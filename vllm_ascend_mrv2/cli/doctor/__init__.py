# SPDX-License-Identifier: Apache-2.0
"""`doctor`: what is installed here, what is wrong with it, and the next step for each.

facts: what was seen, as data. collect: how it is seen. rules: what follows, pure. device: what the
plugin assumes of a device, tried. torch and vLLM are imported in child processes only: doctor is
for environments in which that fails.
"""
