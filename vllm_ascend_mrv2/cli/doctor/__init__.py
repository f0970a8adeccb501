# SPDX-License-Identifier: Apache-2.0
"""`doctor`: what is installed here, what is wrong with it, and the next step for each.

facts: what was seen, as data. collect: how it is seen. rules: what follows, pure. No module here
imports torch or vLLM, also not later: doctor is for environments in which that fails.
"""
