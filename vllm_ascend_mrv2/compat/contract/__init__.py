# SPDX-License-Identifier: Apache-2.0
"""The symbol contract: which names of vLLM this plugin relies on, and with which signature.

contract.json is the list, written by `vllm-ascend-mrv2 contract record` from this package's own
source and never by hand. source reads a core as text, check compares the two. Nothing here
imports vLLM or torch, so a core is checked in seconds, installed or not.
"""
