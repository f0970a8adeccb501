# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Kernels of core's `v1/worker/gpu/spec_decode/rejection_sampler.py`: what goes into verification
and how its result is laid out flat. Verification itself is rejection.py's.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_ascend_mrv2.kernels import constants, ragged


def flatten_sampled(
    flat_sampled_ptr: torch.Tensor,
    sampled_ptr: torch.Tensor,
    sampled_stride: int,
    num_sampled_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    **launch_options: Any,
) -> None:
    """Write each row's first num_sampled tokens where its logits begin; other places keep theirs.

    flat_sampled: [num_logits] int64; sampled: [R, w] int64; num_sampled: [R] int32; cu_num_logits:
    [R + 1] int32.
    """
    num_reqs, num_logits = sampled_ptr.shape[0], flat_sampled_ptr.shape[0]
    rows = ragged.rows_of(cu_num_logits_ptr, num_reqs, num_logits)
    local = constants.arange(num_logits, rows.device, torch.int32) - cu_num_logits_ptr.index_select(
        0, rows
    )
    wanted = local < num_sampled_ptr.index_select(0, rows)
    source = torch.add(local.mul_(wanted), rows, alpha=sampled_stride)
    tokens = sampled_ptr.view(-1).index_select(0, source)
    torch.where(wanted, tokens, flat_sampled_ptr, out=flat_sampled_ptr)


def gather_draft_sampled(
    draft_sampled_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    num_logits: int,
    BLOCK_SIZE: int,
) -> None:
    """Write each logit's input token and position: draft_sampled [num_logits] int32, pos int64.

    A draft of a step that begins inside the prompt is a placeholder, -1: nothing was drafted.
    """
    pos = positions_ptr.index_select(0, logits_indices_ptr)
    token = input_ids_ptr.index_select(0, logits_indices_ptr)
    begin = pos - expanded_local_pos_ptr
    is_draft = expanded_local_pos_ptr > 0
    is_placeholder = begin < prefill_len_ptr.index_select(0, expanded_idx_mapping_ptr)
    draft_sampled_ptr.copy_(token.masked_fill_(is_draft.logical_and_(is_placeholder), -1))
    pos_ptr.copy_(pos)
