# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Min-p filtering of core's `v1/worker/gpu/sample/min_p.py`."""

from __future__ import annotations

import torch


def apply_min_p(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    min_p_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Set logits [n, vocab_size] below max + log(min_p) of their row to -inf, in place.

    expanded_idx_mapping: [n] int64; min_p: [max_num_reqs] float32, 0 (log -inf) filters nothing.
    """
    log_min_p = min_p_ptr.index_select(0, expanded_idx_mapping_ptr).log_()
    threshold = logits_ptr.amax(-1).to(torch.float32) + log_min_p
    logits_ptr.masked_fill_(logits_ptr < threshold.unsqueeze(1), float("-inf"))
