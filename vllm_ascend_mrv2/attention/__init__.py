# SPDX-License-Identifier: Apache-2.0
"""Paged attention on torch_npu's fused infer attention (FIA)."""
