# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Repetition, frequency and presence penalties of core's `v1/worker/gpu/sample/penalties.py`.

The drafts before a logit count as if they were output already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vllm_ascend_mrv2.kernels import bitmask, constants, upload

_counts_drafts = True


def count_drafts(wanted: bool) -> None:
    """Say whether batches of this process may have drafts: counting costs a running sum of them."""
    global _counts_drafts
    _counts_drafts = wanted


def apply_penalties(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    token_ids_ptr: torch.Tensor,
    expanded_local_pos_ptr: torch.Tensor,
    repetition_penalty_ptr: torch.Tensor,
    frequency_penalty_ptr: torch.Tensor,
    presence_penalty_ptr: torch.Tensor,
    prompt_bin_mask_ptr: torch.Tensor,
    prompt_bin_mask_stride: int,
    output_bin_counts_ptr: torch.Tensor,
    output_bin_counts_stride: int,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Penalise logits [n, vocab_size] float32 in place.

    expanded_idx_mapping: [n] int64; token_ids: [n], the input token of each logit, and
    expanded_local_pos: [n], its place among its request's, read where drafts are counted;
    penalties: [max_num_reqs] float32; prompt_bin_mask: [max_num_reqs, ceil(vocab_size / 32)] int32,
    packed; output_bin_counts: [max_num_reqs, vocab_size] int32. Rows with neutral penalties keep
    their values (x * 1 - 0).
    """
    rows = expanded_idx_mapping_ptr

    def of_row(table: torch.Tensor) -> torch.Tensor:
        return table.index_select(0, rows).unsqueeze(1)

    counts = output_bin_counts_ptr.index_select(0, rows)
    if _counts_drafts:
        counts = counts + _drafts_before(token_ids_ptr, expanded_local_pos_ptr, vocab_size)
    in_output = counts > 0
    in_prompt = bitmask.unpack(prompt_bin_mask_ptr.index_select(0, rows), vocab_size)
    one = constants.scalar(1.0, logits_ptr.device, torch.float32)
    scale = torch.where(in_prompt.logical_or_(in_output), of_row(repetition_penalty_ptr), one)
    logits_ptr.mul_(torch.where(logits_ptr > 0, scale.reciprocal(), scale))
    logits_ptr.sub_(counts * of_row(frequency_penalty_ptr))
    logits_ptr.sub_(in_output * of_row(presence_penalty_ptr))


def _drafts_before(
    token_ids: torch.Tensor, local_pos: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """How often each token is a draft up to and with each logit, [n, vocab_size] int32.

    A request's first token was sampled before, and counted. Placeholders (-1) count nowhere.
    """
    num_rows, device = token_ids.shape[0], token_ids.device
    is_draft = (local_pos > 0).logical_and_(token_ids >= 0)
    where = token_ids.to(torch.int64).masked_fill_(~is_draft, vocab_size).unsqueeze(1)
    drafted = torch.zeros(num_rows, vocab_size + 1, dtype=torch.int32, device=device)
    running = drafted.scatter_(1, where, 1)[:, :vocab_size].cumsum(0, dtype=torch.int32)
    first = constants.arange(num_rows, device) - local_pos
    return running - running.index_select(0, first)


def apply_staged_writes(state: Any) -> None:
    """Core's `PenaltiesState.apply_staged_writes`, in the order of the step's staging.

    The tokens that are counted may be staged themselves, so the count waits for them.
    """
    if state._new_penalties_reqs:
        rows, requests = np.asarray(state._new_penalties_reqs, np.int64), state.req_states
        longest = int(requests.prefill_len.np[rows].max())
        view = upload.stage(rows, state.device)
        upload.after(
            lambda: bincount(
                view,
                requests.all_token_ids.gpu,
                requests.prompt_len.gpu,
                requests.prefill_len.gpu,
                state.prompt_bin_mask,
                state.output_bin_counts,
                longest,
            )
        )
        state._new_penalties_reqs.clear()
    state.repetition_penalty.copy_to_uva()
    state.frequency_penalty.copy_to_uva()
    state.presence_penalty.copy_to_uva()


def bincount(
    expanded_idx_mapping: torch.Tensor,
    all_token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    prefill_len: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    output_bin_counts: torch.Tensor,
    max_prefill_len: int,
) -> None:
    """Core's `bincount`: count the tokens that requests bring along, in place.

    expanded_idx_mapping: [n] int64, distinct rows; all_token_ids: [max_num_reqs, max_model_len]
    int32; prompt_len, prefill_len: [max_num_reqs] int32; prompt_bin_mask and output_bin_counts as
    in `apply_penalties`, contiguous; max_prefill_len: at least every row's prefill_len (host).
    """
    rows, device = expanded_idx_mapping, all_token_ids.device
    vocab_size = output_bin_counts.shape[1]
    num_words = prompt_bin_mask.shape[1]
    tokens = all_token_ids[:, :max_prefill_len].index_select(0, rows).to(torch.int64)
    position = constants.arange(max_prefill_len, device, torch.int32)
    is_prompt = position < prompt_len.index_select(0, rows).unsqueeze(1)
    is_output = (position < prefill_len.index_select(0, rows).unsqueeze(1)) & ~is_prompt

    # what is not counted goes to a column past the vocabulary
    width = num_words * 32
    seen = torch.zeros(rows.shape[0], width + 1, dtype=torch.bool, device=device)
    seen.scatter_(1, tokens.masked_fill(~is_prompt, width), True)
    prompt_bin_mask[rows] = bitmask.pack(seen[:, :width], 32, torch.int32)

    counts = torch.zeros(rows.shape[0], vocab_size + 1, dtype=torch.int32, device=device)
    counts.scatter_add_(1, tokens.masked_fill(~is_output, vocab_size), is_output.to(torch.int32))
    output_bin_counts[rows] = counts[:, :vocab_size]
