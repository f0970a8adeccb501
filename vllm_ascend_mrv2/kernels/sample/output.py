# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Sampling masks of core's `v1/worker/gpu/sample/output.py`."""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import bitmask, constants


def compact_sampling_mask(
    logits_ptr: torch.Tensor,
    logits_row_stride: int,
    logits_col_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    num_sampled_tokens_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    token_ids_row_stride: int,
    packed_mask_ptr: torch.Tensor,
    packed_mask_row_stride: int,
    counts_ptr: torch.Tensor,
    vocab_size: int,
    max_num_kept: int,
    ROWS_PER_REQUEST: int,
    BLOCK_SIZE: int,
) -> None:
    """Write which tokens each row could have sampled (finite logits), in ascending order.

    logits: [num_logits, vocab_size]; cu_num_logits: [R + 1] int32; num_sampled_tokens: [R] int32;
    token_ids: [rows, max_num_kept] int32, of which `counts` [rows] int32 (0 for slots that sampled
    nothing) are meant; packed_mask: [rows, ceil(vocab_size / 8)] uint8. rows = R *
    ROWS_PER_REQUEST.
    """
    num_rows, device = counts_ptr.shape[0], logits_ptr.device
    row = constants.arange(num_rows, device)
    request, slot = row // ROWS_PER_REQUEST, row % ROWS_PER_REQUEST
    active = slot < num_sampled_tokens_ptr.index_select(0, request)
    source = (cu_num_logits_ptr.index_select(0, request) + slot).mul_(active)
    keep = logits_ptr.index_select(0, source).isfinite()
    rank = keep.cumsum(1, dtype=torch.int32)
    counts_ptr.copy_(rank[:, -1] * active)

    # the k-th kept token goes to column k; what is not listed, to a column past the last
    column = (rank - 1).masked_fill_(~keep, max_num_kept).clamp_(max=max_num_kept)
    listed = torch.zeros(num_rows, max_num_kept + 1, dtype=torch.int32, device=device)
    tokens = constants.arange(vocab_size, device, torch.int32).expand_as(column)
    listed.scatter_(1, column.to(torch.int64), tokens)
    token_ids_ptr.copy_(listed[:, :max_num_kept])
    packed_mask_ptr.copy_(bitmask.pack(keep, 8, torch.uint8))
