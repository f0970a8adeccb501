# SPDX-License-Identifier: Apache-2.0
"""Differences between vLLM cores, and the few names of core that have to be rebound.

Every module here says why its rebinding is needed, for which core versions, and when it goes.
Nothing here imports another part of this package.
"""
