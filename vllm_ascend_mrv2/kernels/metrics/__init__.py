# SPDX-License-Identifier: Apache-2.0
"""Replacements of core kernels in `v1/worker/gpu/metrics/`, one module per core module."""
