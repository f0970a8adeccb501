# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Batch-sharded sampling of core's `v1/worker/gpu/sample/batch_shard.py`: which rank samples which
requests, and how ranks' results come together.

Names used below: R requests with L logits in the batch, of which this rank owns `r` with `l`. A
request's owner is its state row modulo the number of ranks. Every rank has the same batch, so every
rank makes the same plan. `w`: the most logits of any request.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_ascend_mrv2.kernels import constants, ragged


def build_shard_plan(
    idx_mapping_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    sorted_logits_indices_ptr: torch.Tensor,
    gathered_src_indices_ptr: torch.Tensor,
    local_idx_mapping_ptr: torch.Tensor,
    local_cu_num_logits_ptr: torch.Tensor,
    local_logits_indices_ptr: torch.Tensor,
    local_expanded_idx_mapping_ptr: torch.Tensor,
    local_expanded_local_pos_ptr: torch.Tensor,
    local_seq_lens_ptr: torch.Tensor,
    num_reqs: int,
    local_logits_start: int,
    max_num_reqs_per_rank: int,
    TP_SIZE: int,
    TP_RANK: int,
    **launch_options: Any,
) -> None:
    """Write the batch in the order of its owners, and this rank's part of it.

    In: idx_mapping [R]; cu_num_logits [R + 1], query_start_loc [>= R + 1], seq_lens [>= R] int32.
    Out: sorted_logits_indices [L] int64, token of each logit, by owner; gathered_src_indices [R]
    int64, where each request's result is among all ranks', each padded to max_num_reqs_per_rank;
    and of this rank, as in the batch: idx_mapping and seq_lens [r], cu_num_logits [r + 1],
    logits_indices, expanded_idx_mapping and expanded_local_pos [l].
    """
    num_logits, device = sorted_logits_indices_ptr.shape[0], idx_mapping_ptr.device
    row, owner = constants.arange(num_reqs, device), idx_mapping_ptr % TP_SIZE
    # Places by owner, counted: a sort of integers would run on the device's CPU.
    is_owned = constants.arange(TP_SIZE, device, owner.dtype).unsqueeze(1) == owner
    up_to = is_owned.view(-1).cumsum(0, dtype=torch.int32)
    place = up_to.index_select(0, torch.add(row, owner, alpha=num_reqs)) - 1
    order = torch.empty_like(row).scatter_(0, place.to(torch.int64), row)
    rows = idx_mapping_ptr.index_select(0, order)
    first = up_to.view(TP_SIZE, num_reqs)[:, -1] - is_owned.sum(1, dtype=torch.int32)
    among_owners = place - first.index_select(0, owner)
    gathered_src_indices_ptr.copy_(torch.add(among_owners, owner, alpha=max_num_reqs_per_rank))

    length = ragged.lengths(cu_num_logits_ptr, num_reqs).index_select(0, order)
    starts = _starts_of(length)
    request = ragged.rows_of(starts, num_reqs, num_logits)
    position = constants.arange(num_logits, device, torch.int32) - starts.index_select(0, request)
    begin = query_start_loc_ptr[1 : num_reqs + 1].index_select(0, order) - length
    sorted_logits_indices_ptr.copy_(begin.index_select(0, request) + position)

    # The logits of an owner lie side by side; so do its requests, from where only the device knows.
    own = slice(local_logits_start, local_logits_start + local_logits_indices_ptr.shape[0])
    local_logits_indices_ptr.copy_(sorted_logits_indices_ptr[own])
    local_expanded_idx_mapping_ptr.copy_(rows.index_select(0, request[own]))
    local_expanded_local_pos_ptr.copy_(position[own])
    num_own = local_seq_lens_ptr.shape[0]
    own_places = constants.arange(num_own + 1, device) + first[TP_RANK]
    local_cu_num_logits_ptr.copy_(starts.index_select(0, own_places) - local_logits_start)
    own_places = own_places[:num_own]
    torch.index_select(rows, 0, own_places, out=local_idx_mapping_ptr)
    own_requests = order.index_select(0, own_places)
    torch.index_select(seq_lens_ptr, 0, own_requests, out=local_seq_lens_ptr)


def pack_sampler_output(
    packed_ptr: torch.Tensor,
    packed_stride: int,
    sampled_token_ids_ptr: torch.Tensor,
    sampled_token_ids_stride: int,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    num_nans_ptr: torch.Tensor | None,
    local_cu_num_logits_ptr: torch.Tensor | None,
    max_num_logits_per_req: int,
    num_src_cols: int,
    BLOCK_SIZE: int,
) -> None:
    """Write this rank's results side by side into the first r rows of packed, int64.

    sampled_token_ids: [r, >= num_src_cols] int64, padded by 0 to w; num_sampled and num_rejected
    [r] int32; then, if they are counted, NaNs per request: num_nans [l] int32, one for each logit
    of local_cu_num_logits [r + 1] int32. packed: [>= r, w + 2 or w + 3].
    """
    num_reqs, width = num_sampled_ptr.shape[0], max_num_logits_per_req
    packed = packed_ptr[:num_reqs]
    packed[:, :num_src_cols].copy_(sampled_token_ids_ptr[:, :num_src_cols])
    packed[:, num_src_cols:width].zero_()
    packed[:, width].copy_(num_sampled_ptr)
    packed[:, width + 1].copy_(num_rejected_ptr)
    if num_nans_ptr is not None:
        assert local_cu_num_logits_ptr is not None
        before = _starts_of(num_nans_ptr).index_select(0, local_cu_num_logits_ptr)
        packed[:, width + 2].copy_(ragged.lengths(before, num_reqs))


def unpack_gathered_output(
    gathered_ptr: torch.Tensor,
    gathered_stride: int,
    gathered_src_indices_ptr: torch.Tensor,
    sampled_token_ids_ptr: torch.Tensor,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    num_nans_ptr: torch.Tensor | None,
    max_num_logits_per_req: int,
    BLOCK_SIZE: int,
) -> None:
    """Write what all ranks packed, in the batch's order: the inverse of `pack_sampler_output`.

    gathered: [ranks * rows of each, w + 2 or w + 3] int64; sampled_token_ids [R, w] int64, the
    counts [R] int32.
    """
    width = max_num_logits_per_req
    rows = gathered_ptr.index_select(0, gathered_src_indices_ptr)
    sampled_token_ids_ptr.copy_(rows[:, :width])
    num_sampled_ptr.copy_(rows[:, width])
    num_rejected_ptr.copy_(rows[:, width + 1])
    if num_nans_ptr is not None:
        num_nans_ptr.copy_(rows[:, width + 2])


def pack_logprobs(
    send_ids_ptr: torch.Tensor,
    send_ids_stride: int,
    send_logprobs_ptr: torch.Tensor,
    send_logprobs_stride: int,
    src_ids_ptr: torch.Tensor,
    src_ids_stride: int,
    src_logprobs_ptr: torch.Tensor,
    src_logprobs_stride: int,
    selected_token_ranks_ptr: torch.Tensor,
    local_cu_num_logits_ptr: torch.Tensor,
    max_num_logits_per_req: int,
    num_logprob_cols: int,
    num_src_cols: int,
    BLOCK_SIZE: int,
) -> None:
    """Write this rank's log probabilities, w rows for each request; other rows keep theirs.

    src_ids [l, num_src_cols] int64, src_logprobs the same float32, selected_token_ranks [l] int64.
    send_ids: [>= r * w, num_logprob_cols + 1] int64, the rank last; send_logprobs: [>= r * w,
    num_logprob_cols] float32. Columns that are missing are 0 and -inf, those too many are left out.
    """
    cu = local_cu_num_logits_ptr
    num_reqs, num_logits = cu.shape[0] - 1, src_ids_ptr.shape[0]
    request = ragged.rows_of(cu, num_reqs, num_logits)
    row = _row_of_its_request(cu, request, request, max_num_logits_per_req)
    kept = min(num_src_cols, num_logprob_cols)

    def widened(values: torch.Tensor, missing: float) -> torch.Tensor:
        return torch.nn.functional.pad(
            values[:, :kept], (0, num_logprob_cols - kept), value=missing
        )

    ranks = selected_token_ranks_ptr.unsqueeze(1)
    send_ids_ptr[row] = torch.cat((widened(src_ids_ptr, 0), ranks), 1)
    send_logprobs_ptr[row] = widened(src_logprobs_ptr, float("-inf"))


def unpack_logprobs(
    gathered_ids_ptr: torch.Tensor,
    gathered_ids_stride: int,
    gathered_logprobs_ptr: torch.Tensor,
    gathered_logprobs_stride: int,
    gathered_src_indices_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    logprob_token_ids_ptr: torch.Tensor,
    logprobs_ptr: torch.Tensor,
    selected_token_ranks_ptr: torch.Tensor,
    max_num_logits_per_req: int,
    num_logprob_cols: int,
    BLOCK_SIZE: int,
) -> None:
    """Write all ranks' log probabilities, one row for each logit of the batch, in its order.

    gathered_ids and gathered_logprobs: of all ranks, as `pack_logprobs` wrote them; out:
    logprob_token_ids [L, num_logprob_cols] int64, logprobs the same float32, selected_token_ranks
    [L] int64.
    """
    cu = cu_num_logits_ptr
    num_reqs, num_logits = gathered_src_indices_ptr.shape[0], logprobs_ptr.shape[0]
    request = ragged.rows_of(cu, num_reqs, num_logits)
    source = gathered_src_indices_ptr.index_select(0, request)
    row = _row_of_its_request(cu, request, source, max_num_logits_per_req)
    ids = gathered_ids_ptr.index_select(0, row)
    logprob_token_ids_ptr.copy_(ids[:, :num_logprob_cols])
    selected_token_ranks_ptr.copy_(ids[:, num_logprob_cols])
    torch.index_select(gathered_logprobs_ptr, 0, row, out=logprobs_ptr)


def _starts_of(lengths: torch.Tensor) -> torch.Tensor:
    """[n + 1] int32: 0 and the running sum of lengths [n]."""
    starts = lengths.new_zeros(lengths.shape[0] + 1, dtype=torch.int32)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=starts[1:])
    return starts


def _row_of_its_request(
    cu_num_logits: torch.Tensor, request: torch.Tensor, place: torch.Tensor, width: int
) -> torch.Tensor:
    """[num_logits] int64: where a logit is if each request's begin at its `place` times width.

    cu_num_logits: [num_reqs + 1] int32; request and place: [num_logits] int64, of each logit.
    """
    logit = constants.arange(request.shape[0], request.device)
    return torch.add(logit - cu_num_logits.index_select(0, request), place, alpha=width)
