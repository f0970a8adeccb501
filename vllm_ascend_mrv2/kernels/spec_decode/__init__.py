# SPDX-License-Identifier: Apache-2.0
"""Replacements of core's `v1/worker/gpu/spec_decode`."""
