# SPDX-License-Identifier: Apache-2.0
"""Replacements of core kernels in `v1/worker/gpu/model_states/`, one module per core module."""
