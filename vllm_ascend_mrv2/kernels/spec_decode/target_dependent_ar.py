# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Inputs of drafts that follow the target's hidden states (EAGLE, MTP): core's
`v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py`.

R is the number of requests, T the length of the draft's token buffers. The step counter and the
query starts are tensors of the drafter, read and written on the device.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants, ragged


def prepare_prefill_inputs(
    last_token_indices_ptr: torch.Tensor,
    draft_current_step_ptr: torch.Tensor,
    draft_input_ids_ptr: torch.Tensor,
    draft_positions_ptr: torch.Tensor,
    draft_query_start_loc_ptr: torch.Tensor,
    draft_seq_lens_ptr: torch.Tensor,
    target_input_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """The target's tokens one place on, with the token after each request's last accepted one.

    Writes draft input_ids [T] int32 and positions [T] int64 of accepted tokens (rejected ones keep
    what was there), query_start_loc [max_num_reqs + 1] and seq_lens [max_num_reqs] int32 with
    padding, last_token_indices [max_num_reqs] int64 (0 past the batch), and 0 to the step counter.
    last_sampled: [max_num_reqs, 1] int64; next_prefill_tokens: [lookahead, max_num_reqs] int32.
    """
    num_reqs = idx_mapping_ptr.shape[0]
    num_tokens = min(target_input_ids_ptr.shape[0], draft_input_ids_ptr.shape[0])
    starts = query_start_loc_ptr[: num_reqs + 1]
    last = starts[1:] - 1 - num_rejected_ptr[:num_reqs]
    upcoming = next_prefill_tokens_ptr.view(-1).index_select(0, idx_mapping_ptr)
    sampled = last_sampled_ptr.view(-1).index_select(0, idx_mapping_ptr).to(upcoming.dtype)
    following = torch.where(num_sampled_ptr[:num_reqs] > 0, sampled, upcoming)

    rows = ragged.rows_of(starts, num_reqs, num_tokens)
    token = constants.arange(num_tokens, rows.device, torch.int32)
    before_last = last.index_select(0, rows)
    accepted = token <= before_last
    positions = draft_positions_ptr[:num_tokens]
    torch.where(accepted, target_positions_ptr[:num_tokens], positions, out=positions)
    shifted = torch.roll(target_input_ids_ptr[:num_tokens], -1)
    ids = draft_input_ids_ptr[:num_tokens]
    ids.copy_(
        torch.where(
            token < before_last,
            shifted,
            torch.where(token == before_last, following.index_select(0, rows), ids),
        )
    )
    draft_query_start_loc_ptr[:num_reqs].copy_(starts[:-1])
    draft_query_start_loc_ptr[num_reqs:].copy_(starts[-1:].expand(max_num_reqs + 1 - num_reqs))
    draft_seq_lens_ptr[:num_reqs].copy_(seq_lens_ptr[:num_reqs])
    last_token_indices_ptr[:num_reqs].copy_(last)
    if num_reqs < max_num_reqs:
        draft_seq_lens_ptr[num_reqs:].zero_()
        last_token_indices_ptr[num_reqs:].zero_()
    draft_current_step_ptr.zero_()


def prepare_decode_inputs(
    draft_tokens_ptr: torch.Tensor,
    draft_tokens_stride: int,
    target_seq_lens_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    input_ids_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    sample_src_positions_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    max_model_len: int,
    max_num_reqs: int,
    BLOCK_SIZE: int,
    ADVANCE_DRAFT_POSITIONS: bool,
) -> None:
    """From the first draft to one token per request: ids, positions, lengths, query starts.

    draft_tokens: [R] int64, any stride; positions and sample_src_positions: [>= R] int64, each one
    on; seq_lens: [max_num_reqs] int32, without the rejected tokens, clamped to the model's length.
    """
    num_reqs = draft_tokens_ptr.shape[0]
    input_ids_ptr[:num_reqs].copy_(draft_tokens_ptr)
    sample_src_positions_ptr[:num_reqs].add_(1)
    lens = target_seq_lens_ptr[:num_reqs] - num_rejected_ptr[:num_reqs]
    if ADVANCE_DRAFT_POSITIONS:
        positions_ptr[:num_reqs].add_(1).clamp_(max=max_model_len - 1)
        lens.add_(1).clamp_(max=max_model_len)
    seq_lens_ptr[:num_reqs].copy_(lens)
    if num_reqs < max_num_reqs:
        seq_lens_ptr[num_reqs:].zero_()
    ramp = constants.arange(max_num_reqs + 1, input_ids_ptr.device, torch.int32)
    query_start_loc_ptr[: max_num_reqs + 1].copy_(ramp.clamp(max=num_reqs))


def update_draft_inputs(
    output_draft_tokens_ptr: torch.Tensor,
    output_draft_tokens_stride: int,
    next_input_hidden_states_ptr: torch.Tensor,
    next_input_hidden_states_stride: int,
    input_ids_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    sample_src_positions_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor,
    current_draft_step_ptr: torch.Tensor,
    hidden_states_ptr: torch.Tensor,
    hidden_states_stride: int,
    hidden_size: int,
    max_model_len: int,
    num_speculative_steps: int,
    BLOCK_SIZE: int,
    ADVANCE_DRAFT_POSITIONS: bool,
) -> None:
    """Keep this step's drafts, and make them the inputs of the next step unless it is the last.

    output_draft_tokens: [max_num_reqs, k] int64, written at the step counter's column;
    draft_tokens: [R] int64; hidden_states: [>= R, hidden_size]. The step is on the device, so the
    last step rewrites the inputs with themselves.
    """
    num_reqs = draft_tokens_ptr.shape[0]
    step = current_draft_step_ptr.view(1)
    out = output_draft_tokens_ptr[:num_reqs]
    column = constants.arange(out.shape[1], out.device)
    out.copy_(torch.where(column == step, draft_tokens_ptr.unsqueeze(1), out))

    goes_on = step < num_speculative_steps - 1
    one = goes_on.to(torch.int32)
    sample_src_positions_ptr[:num_reqs].add_(one)
    ids = input_ids_ptr[:num_reqs]
    ids.copy_(torch.where(goes_on, draft_tokens_ptr.to(ids.dtype), ids))
    hidden = next_input_hidden_states_ptr[:num_reqs]
    hidden.copy_(torch.where(goes_on, hidden_states_ptr[:num_reqs], hidden))
    if ADVANCE_DRAFT_POSITIONS:
        positions = positions_ptr[:num_reqs]
        positions.copy_(
            torch.where(goes_on, (positions + 1).clamp_(max=max_model_len - 1), positions)
        )
        lens = seq_lens_ptr[:num_reqs]
        lens.copy_(torch.where(goes_on, (lens + 1).clamp_(max=max_model_len), lens))
