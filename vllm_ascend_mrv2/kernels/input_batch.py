# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Torch replacements of the kernels of core's `v1/worker/gpu/input_batch.py`.

Each function has its kernel's signature and writes what the kernel writes, bit for bit; the grid
is recovered from tensor shapes. A batch without drafts (one logit per request) takes a shorter way.

Names used below, with R the number of requests in the batch and T the length of a token buffer:
`idx_mapping` is [R] int64, batch row -> request state row; `query_start_loc` is [>= R + 1] int32;
request state tensors are [max_num_reqs] int32 unless said otherwise.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_ascend_mrv2.kernels import constants, ragged
from vllm_ascend_mrv2.kernels.errors import NotReplacedError


def prepare_prefill_inputs(
    input_ids_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    next_prefill_tokens_stride: int,
    num_lookahead: int,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prefill_lens_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    LOOKAHEAD_BLOCK: int,
) -> None:
    """Copy the scheduled prompt tokens of prefilling rows into the batch.

    Writes input_ids [T] int32 in place, and next_prefill_tokens [num_lookahead, max_num_reqs]
    int32: the tokens after the scheduled ones, 0 past the prompt. Rows that do not prefill are
    untouched. all_token_ids: [max_num_reqs, max_model_len] int32, contiguous.
    """
    num_reqs, num_tokens = idx_mapping_ptr.shape[0], input_ids_ptr.shape[0]
    starts = query_start_loc_ptr
    all_tokens = all_token_ids_ptr.view(-1)

    num_computed = num_computed_tokens_ptr.index_select(0, idx_mapping_ptr)
    prefill_len = prefill_lens_ptr.index_select(0, idx_mapping_ptr)
    prefilling = num_computed < prefill_len
    row_base = torch.add(num_computed, idx_mapping_ptr, alpha=all_token_ids_stride)

    rows = ragged.rows_of(starts, num_reqs, num_tokens)
    wanted = prefilling.index_select(0, rows).logical_and_(
        ragged.in_batch(starts, num_reqs, num_tokens)
    )
    source = (row_base - starts[:num_reqs]).index_select(0, rows)
    source.add_(constants.arange(num_tokens, source.device)).mul_(wanted)
    torch.where(wanted, all_tokens.index_select(0, source), input_ids_ptr, out=input_ids_ptr)

    after = num_computed + ragged.lengths(starts, num_reqs)
    for ahead in range(num_lookahead):
        inside = (after + ahead) < prefill_len
        source = torch.add(after + ahead, idx_mapping_ptr, alpha=all_token_ids_stride).mul_(inside)
        upcoming = next_prefill_tokens_ptr[ahead]
        token = all_tokens.index_select(0, source).mul_(inside)
        upcoming[idx_mapping_ptr] = torch.where(
            prefilling, token, upcoming.index_select(0, idx_mapping_ptr)
        )


def prepare_pos_seq_lens(
    pos_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """Write positions [T] int64 of the batch's tokens and seq_lens [max_num_reqs] int32.

    seq_lens past the batch become 0; positions past the batch's tokens keep their value.
    """
    num_reqs, num_tokens = idx_mapping_ptr.shape[0], pos_ptr.shape[0]
    starts = query_start_loc_ptr
    num_computed = num_computed_tokens_ptr.index_select(0, idx_mapping_ptr)
    torch.add(num_computed, ragged.lengths(starts, num_reqs), out=seq_lens_ptr[:num_reqs])
    if num_reqs < max_num_reqs:
        seq_lens_ptr[num_reqs:].zero_()
    rows = ragged.rows_of(starts, num_reqs, num_tokens)
    row_base = num_computed - starts[:num_reqs]
    positions = row_base.index_select(0, rows) + constants.arange(
        num_tokens, pos_ptr.device, pos_ptr.dtype
    )
    torch.where(ragged.in_batch(starts, num_reqs, num_tokens), positions, pos_ptr, out=pos_ptr)


def combine_sampled_and_draft_tokens(
    input_ids_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor,
    draft_tokens_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:
    """Put each decoding row's last sampled token and its drafts into the batch.

    Writes input_ids [T] int32 in place and logits_indices [num_logits] int64, each row's last
    tokens. last_sampled_tokens: [max_num_reqs, 1] int64; draft_tokens: [max_num_reqs, k] int64;
    cu_num_logits: [R + 1] int32, a row with d drafts has d + 1 logits.

    Raises NotReplacedError where rows sample no token of their own (diffusion).
    """
    num_reqs, num_logits = idx_mapping_ptr.shape[0], logits_indices_ptr.shape[0]
    if NUM_NEW_SAMPLED_TOKENS != 1:
        raise NotReplacedError(
            f"diffusion: {num_logits} logits for {num_reqs} requests with "
            f"{NUM_NEW_SAMPLED_TOKENS} sampled token each. That half of "
            "_combine_sampled_and_draft_tokens_kernel has no replacement on this device; serve an "
            "autoregressive model."
        )
    prefill_len = prefill_len_ptr.index_select(0, idx_mapping_ptr)
    decoding = seq_lens_ptr[:num_reqs] > prefill_len
    sampled = last_sampled_tokens_ptr.view(-1).index_select(0, idx_mapping_ptr)
    if num_logits == num_reqs:
        logits_indices_ptr.copy_(query_start_loc_ptr[1 : num_reqs + 1] - 1)
        tokens, wanted = sampled, decoding
    else:
        rows = ragged.rows_of(cu_num_logits_ptr, num_reqs, num_logits)
        starts = cu_num_logits_ptr.index_select(0, rows)
        local = constants.arange(num_logits, rows.device, starts.dtype) - starts
        logits_per_row = ragged.lengths(cu_num_logits_ptr, num_reqs)
        first = query_start_loc_ptr[1 : num_reqs + 1] - logits_per_row
        logits_indices_ptr.copy_(first.index_select(0, rows).add_(local))
        column = (local - 1).clamp_min_(0).to(torch.int64)
        draft = torch.add(column, idx_mapping_ptr.index_select(0, rows), alpha=draft_tokens_stride)
        is_draft = local > 0
        tokens = torch.where(
            is_draft,
            draft_tokens_ptr.view(-1).index_select(0, draft),
            sampled.index_select(0, rows),
        )
        # A row whose first logit lies in its prompt keeps the prompt's token there.
        past_prompt = seq_lens_ptr[:num_reqs] - logits_per_row >= prefill_len
        wanted = decoding.index_select(0, rows)
        wanted = wanted.logical_and_(is_draft.logical_or_(past_prompt.index_select(0, rows)))
    current = input_ids_ptr.index_select(0, logits_indices_ptr)
    input_ids_ptr[logits_indices_ptr] = torch.where(wanted, tokens.to(current.dtype), current)


def get_num_sampled_and_rejected(
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
) -> None:
    """Zero num_sampled [R] of rows still prefilling; write num_rejected [R]. Both int32."""
    num_reqs = idx_mapping_ptr.shape[0]
    complete = seq_lens_ptr[:num_reqs] >= prefill_len_ptr.index_select(0, idx_mapping_ptr)
    num_sampled_ptr.mul_(complete)
    num_logits = ragged.lengths(cu_num_logits_ptr, num_reqs)
    torch.mul(num_logits.sub_(num_sampled_ptr), complete, out=num_rejected_ptr)


def post_update(
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    output_bin_counts_ptr: torch.Tensor | None,
    output_bin_counts_stride: int,
    sampled_tokens_ptr: torch.Tensor,
    sampled_tokens_stride: int,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor | None,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor | None = None,
    draft_tokens_out_ptr: torch.Tensor | None = None,
    num_draft_tokens: int = 0,
    **launch_options: Any,
) -> None:
    """Advance the request state by what this step sampled.

    sampled_tokens: [R, w] int64, the first num_sampled (0 to w) of each row count; num_sampled and
    num_rejected: [R] int32; all_token_ids: [max_num_reqs, max_model_len] int32, output_bin_counts:
    [max_num_reqs, vocab_size] int32, both contiguous. A negative idx_mapping entry marks a row
    without a request.

    Every write adds a difference (0 for what writes nothing), so that such rows may share state
    row 0 with a request without an order among the writes.
    """
    # Core 0.33 also keeps the next step's drafts here.
    if draft_tokens_ptr is not None:
        raise NotReplacedError(
            "speculative decoding: this core's _post_update_kernel keeps the next step's drafts, "
            "which has no replacement on this device; start without --speculative-config."
        )
    num_reqs, width = idx_mapping_ptr.shape[0], sampled_tokens_ptr.shape[1]
    real = idx_mapping_ptr >= 0
    rows = idx_mapping_ptr.clamp_min(0)
    num_sampled = num_sampled_ptr[:num_reqs] * real

    last_sampled = last_sampled_tokens_ptr.view(-1)
    length = total_len_ptr.index_select(0, rows)
    if width == 1:
        tokens, counted, row = sampled_tokens_ptr[:, 0], num_sampled, rows
        last, any_sampled = tokens, num_sampled
    else:
        column = constants.arange(width, rows.device, num_sampled.dtype)
        counted = (column < num_sampled.unsqueeze(1)).to(num_sampled.dtype).flatten()
        tokens = sampled_tokens_ptr.flatten()
        row = rows.unsqueeze(1).expand(-1, width).flatten()
        length = (length.unsqueeze(1) + column).flatten()
        at = (num_sampled - 1).clamp_min_(0).to(torch.int64).unsqueeze(1)
        last = sampled_tokens_ptr.gather(1, at).squeeze(1)
        any_sampled = num_sampled.clamp(max=1)
    last_sampled.index_add_(0, rows, (last - last_sampled.index_select(0, rows)).mul_(any_sampled))

    all_tokens = all_token_ids_ptr.view(-1)
    target = torch.add(length, row, alpha=all_token_ids_stride).mul_(counted)
    change = (tokens.to(all_tokens.dtype) - all_tokens.index_select(0, target)).mul_(counted)
    all_tokens.index_add_(0, target, change)
    total_len_ptr.index_add_(0, rows, num_sampled)

    if output_bin_counts_ptr is not None:
        # what was not sampled may be any token
        bins = torch.add(tokens, row, alpha=output_bin_counts_stride).mul_(counted)
        output_bin_counts_ptr.view(-1).index_add_(0, bins, counted)

    delta = -num_rejected_ptr[:num_reqs]
    if query_start_loc_ptr is not None:
        delta.add_(ragged.lengths(query_start_loc_ptr, num_reqs))
    num_computed_tokens_ptr.index_add_(0, rows, delta.mul_(real))


def post_update_num_computed_tokens(
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
) -> None:
    """Add each row's scheduled tokens to num_computed_tokens [max_num_reqs] int32."""
    query_lens = ragged.lengths(query_start_loc_ptr, idx_mapping_ptr.shape[0])
    num_computed_tokens_ptr.index_add_(0, idx_mapping_ptr, query_lens)


def expand_idx_mapping(
    idx_mapping_ptr: torch.Tensor,
    expanded_idx_mapping_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """Write, per logit, its request state row and its position among its row's logits.

    expanded_idx_mapping: [num_logits] of idx_mapping's dtype; expanded_local_pos: [num_logits]
    int32; cu_num_logits: [R + 1] int32. Logits past cu_num_logits[R] keep their value.
    """
    num_reqs, num_logits = idx_mapping_ptr.shape[0], expanded_idx_mapping_ptr.shape[0]
    rows = ragged.rows_of(cu_num_logits_ptr, num_reqs, num_logits)
    inside = ragged.in_batch(cu_num_logits_ptr, num_reqs, num_logits)
    local = constants.arange(num_logits, rows.device, torch.int32) - cu_num_logits_ptr.index_select(
        0, rows
    )
    out = expanded_idx_mapping_ptr
    torch.where(inside, idx_mapping_ptr.index_select(0, rows), out, out=out)
    torch.where(inside, local, expanded_local_pos_ptr, out=expanded_local_pos_ptr)
