# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Inputs of a draft model of its own: core's
`v1/worker/gpu/spec_decode/standalone_ar/speculator.py`.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants, ragged


def prepare_prefill_inputs(
    target_input_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    last_sampled_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_positions_ptr: torch.Tensor,
    last_token_indices_ptr: torch.Tensor,
    out_query_start_loc_ptr: torch.Tensor,
    out_seq_lens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    max_num_reqs: int,
    max_model_len: int,
    BLOCK_SIZE: int,
) -> None:
    """Each request's accepted tokens, the token sampled after them, and a 0 for each rejected one.

    A request of q tokens has q + 1 in out_input_ids [>= T + R] int32 and out_positions int64.
    Writes out_query_start_loc [max_num_reqs + 1] and out_seq_lens [max_num_reqs] int32 with
    padding, and last_token_indices [max_num_reqs] int64 (0 past the batch). last_sampled:
    [max_num_reqs, 1] int32; num_rejected: [R] int32.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    num_tokens = target_input_ids_ptr.shape[0]
    capacity = min(out_input_ids_ptr.shape[0], num_tokens + num_reqs)
    starts = query_start_loc_ptr[: num_reqs + 1]
    ramp = constants.arange(num_reqs + 1, starts.device, torch.int32)
    out_starts = starts + ramp
    num_valid = ragged.lengths(starts, num_reqs) - num_rejected_ptr[:num_reqs]

    rows = ragged.rows_of(out_starts, num_reqs, capacity)
    token = constants.arange(capacity, rows.device, torch.int32)
    offset = token - out_starts.index_select(0, rows)
    valid = num_valid.index_select(0, rows)
    is_valid = offset < valid
    source = (starts.index_select(0, rows) + offset).mul_(is_valid).clamp_(0, num_tokens - 1)
    ids = target_input_ids_ptr.index_select(0, source).mul_(is_valid)
    correction = last_sampled_ptr.view(-1).index_select(0, idx_mapping_ptr)
    ids = torch.where(offset == valid, correction.index_select(0, rows).to(ids.dtype), ids)
    begin = target_positions_ptr.index_select(0, starts[:num_reqs])
    positions = begin.index_select(0, rows).add_(offset).clamp_(max=max_model_len - 1)
    inside = token < out_starts[num_reqs]
    out_ids, out_positions = out_input_ids_ptr[:capacity], out_positions_ptr[:capacity]
    torch.where(inside, ids, out_ids, out=out_ids)
    torch.where(inside, positions, out_positions, out=out_positions)

    last_token_indices_ptr[:num_reqs].copy_(out_starts[:num_reqs] + num_valid)
    out_query_start_loc_ptr[:num_reqs].copy_(out_starts[:num_reqs])
    rest = max_num_reqs + 1 - num_reqs
    out_query_start_loc_ptr[num_reqs : max_num_reqs + 1].copy_(out_starts[-1:].expand(rest))
    lens = (seq_lens_ptr[:num_reqs] + 1).clamp_(max=max_model_len)
    out_seq_lens_ptr[:num_reqs].copy_(lens)
    if num_reqs < max_num_reqs:
        out_seq_lens_ptr[num_reqs:max_num_reqs].zero_()
        last_token_indices_ptr[num_reqs:max_num_reqs].zero_()
