# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""NaN counting of core's `v1/worker/gpu/metrics/logits.py`."""

from __future__ import annotations

import torch


def num_nans(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    num_nans_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Write the NaNs of each row: logits [n, vocab_size], num_nans [n] int32."""
    num_nans_ptr.copy_(logits_ptr.isnan().sum(-1, dtype=torch.int32))
