# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Watermarked sampling of core's `v1/worker/gpu/sample/watermark.py`.

A token's noise is a keyed function of the tokens before it, so that who has the key can tell later
that it was used. Words are uint32 values in int64 (see kernels/philox.py).
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_ascend_mrv2.kernels import constants, philox
from vllm_ascend_mrv2.kernels.sample import gumbel

_CONTEXT_DOMAIN, _TOKEN_DOMAIN = 0x574D4358, 0x574D544B  # core's, of its two uses of the generator
_LANES = 4  # words of one draw, each one token's
# Of [n, vocab_size] or [n, history] at once: some int64 intermediates of 32 MiB, since core's
# kernels, which materialise none of this, leave no memory for it.
_MAX_ELEMENTS = 1 << 22


# -- the noise -------------------------------------------------------------------------------------


def _keys(first: int, second: int, device: torch.device) -> torch.Tensor:
    """[2, 1] int64."""
    words = [constants.scalar(word, device, torch.int64) for word in (first, second)]
    return torch.stack(words)


def _context_state(contexts: torch.Tensor, key: tuple[int, int]) -> list[torch.Tensor]:
    """Four words [n] of each context, [n, width] integer, -1 where there is no token."""
    (rows, width), device = contexts.shape, contexts.device
    words = contexts.to(torch.int64).bitwise_and(philox.MASK)
    if missing := -width % _LANES:
        lane = constants.arange(_LANES, device)[_LANES - missing :]
        words = torch.cat((words, (philox.MASK - lane).expand(rows, missing)), 1)
    zero = constants.zeros(rows, device)
    state = [zero + _CONTEXT_DOMAIN, zero + width, zero, zero]
    for offset in range(0, width, _LANES):
        block = words[:, offset : offset + _LANES].unbind(1)
        c0, c1, c2, c3 = (word ^ mine for word, mine in zip(state, block, strict=True))
        even, odd = philox.rounds(
            torch.stack((c2, c0)), torch.stack((c1, c3)), _keys(key[0] ^ offset, key[1], device)
        )
        state = [even[1], odd[0], even[0], odd[1]]
    return state


def _token_words(contexts: torch.Tensor, key: tuple[int, int], vocab_size: int) -> torch.Tensor:
    """One word for each token after each context: [n, vocab_size]."""
    device, rows = contexts.device, contexts.shape[0]
    s0, s1, s2, s3 = (word.unsqueeze(1) for word in _context_state(contexts, key))
    draws = -(-vocab_size // _LANES)
    number = constants.arange(draws, device).expand(rows, draws)
    keys = torch.stack((s3 ^ key[0], torch.full_like(s3, key[1] ^ _TOKEN_DOMAIN)))
    even, odd = philox.rounds(
        torch.stack((s1.expand(rows, draws), number)), torch.stack((s0, s2)), keys
    )
    words = torch.stack((even[1], odd[0], even[0], odd[1]), -1)
    return words.view(rows, draws * _LANES)[:, :vocab_size]


def _uniform(words: torch.Tensor) -> torch.Tensor:
    """The float32 below (n + 1) / 2**24, n a word's upper 24 bits: in (0, 1)."""
    scaled = (philox.shifted_right(words, 8) + 1).to(torch.float32).mul_(2.0**-24)
    return scaled.view(torch.int32).sub_(1).view(torch.float32)


def watermarked(logits: torch.Tensor, contexts: torch.Tensor, key: tuple[int, int]) -> torch.Tensor:
    """argmax(logits + the key's Gumbel noise): [n] int64. A NaN is never drawn.

    logits: [n, vocab_size]; contexts: [n, width] integer; key: its lower and upper 32 bits.
    """
    size = max(1, _MAX_ELEMENTS // logits.shape[1])
    pieces = []
    for begin in range(0, max(1, logits.shape[0]), size):
        part = logits[begin : begin + size].float()
        words = _token_words(contexts[begin : begin + size], key, logits.shape[1])
        noise = _uniform(words).log_().neg_().log_()
        pieces.append(part.masked_fill(part.isnan(), float("-inf")).sub_(noise).argmax(-1))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def philox_gumbel(
    local_argmax_ptr: torch.Tensor,
    local_argmax_stride: int,
    local_max_ptr: torch.Tensor,
    local_max_stride: int,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    contexts_ptr: torch.Tensor,
    context_stride: int,
    skip_mask_ptr: torch.Tensor | None,
    expanded_idx_mapping_ptr: torch.Tensor | None,
    seeds_ptr: torch.Tensor | None,
    pos_ptr: torch.Tensor | None,
    temp_ptr: torch.Tensor | None,
    logits_cache_ptr: torch.Tensor | None,
    logits_cache_stride_0: int,
    logits_cache_stride_1: int,
    logits_cache_col_ptr: torch.Tensor | None,
    logits_cache_source_ptr: torch.Tensor | None,
    logits_cache_source_stride: int,
    key_0_value: int,
    key_1_value: int,
    vocab_size: int,
    USE_FP64: bool,
    IS_DRAFTING: bool,
    **sizes: Any,
) -> None:
    """Write the token of each row, [n, blocks] int64, the same for each block of its vocabulary.

    skip_mask: [n] bool, rows that are drawn as without a watermark, by seeds, positions and
    temperatures as `gumbel.gumbel_sample` takes them, which says also what is cached. local_max:
    [n, blocks], of which the caller takes the largest.
    """
    if logits_cache_ptr is not None:
        assert logits_cache_col_ptr is not None
        assert logits_cache_source_ptr is not None
        assert expanded_idx_mapping_ptr is not None
        gumbel.keep_logits(
            logits_cache_ptr,
            logits_cache_col_ptr,
            expanded_idx_mapping_ptr,
            logits_cache_source_ptr,
        )
    tokens = watermarked(logits_ptr, contexts_ptr, (key_0_value, key_1_value))
    if skip_mask_ptr is not None:
        ordinary = gumbel.gumbel_sample(
            logits_ptr,
            expanded_idx_mapping_ptr,
            temp_ptr,
            seeds_ptr,
            pos_ptr,
            apply_temperature=False,
            is_drafting=IS_DRAFTING,
            use_fp64=USE_FP64,
        )
        tokens = torch.where(skip_mask_ptr, ordinary, tokens)
    local_argmax_ptr.copy_(tokens.unsqueeze(1).expand_as(local_argmax_ptr))
    local_max_ptr.zero_()


# -- contexts that came before ---------------------------------------------------------------------


def repeated_context_mask(
    output_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    req_indices_ptr: torch.Tensor,
    prompt_lens_ptr: torch.Tensor,
    total_lens_ptr: torch.Tensor,
    history_offsets_ptr: torch.Tensor | None,
    history_offsets_stride: int,
    contexts_ptr: torch.Tensor,
    context_stride: int,
    local_positions_ptr: torch.Tensor | None,
    prior_contexts_ptr: torch.Tensor | None,
    prior_contexts_stride_0: int,
    prior_contexts_stride_1: int,
    steps_ptr: torch.Tensor | None,
    steps_stride: int,
    enabled_ptr: torch.Tensor | None,
    NUM_SPECULATIVE_STEPS: int,
    MAX_HISTORY: int,
    INCLUDE_PROMPT: bool,
    SKIP_PARTIAL_CONTEXT: bool,
    **sizes: Any,
) -> None:
    """Write whether each row's context came before, [n] bool; of a row without a request, no.

    req_indices: [n] integer, negative without a request; all_token_ids: [max_num_reqs,
    max_model_len] int32 with prompt_lens and total_lens [max_num_reqs] int32; contexts: [n, width],
    -1 where there is no token. Looked at are the last MAX_HISTORY places (0: all), less
    history_offsets [n]; with INCLUDE_PROMPT the prompt's, too. local_positions [n]: contexts of the
    same request's earlier rows count as well. steps [n]: those of earlier drafts do,
    prior_contexts [>= n, NUM_SPECULATIVE_STEPS, width], to which this one is added; written is then
    which rows of `enabled` [n] bool have a new context.
    """
    contexts, is_request = contexts_ptr, req_indices_ptr >= 0
    request = req_indices_ptr.clamp_min(0)
    generated = total_lens_ptr.index_select(0, request) - prompt_lens_ptr.index_select(0, request)
    repeated = _in_history(
        contexts,
        all_token_ids_ptr,
        request,
        total_lens_ptr.index_select(0, request),
        total_lens_ptr.index_select(0, request) if INCLUDE_PROMPT else generated,
        history_offsets_ptr,
        MAX_HISTORY,
    )
    is_partial = (contexts < 0).any(1)
    if SKIP_PARTIAL_CONTEXT:
        repeated |= generated < contexts.shape[1]
    if local_positions_ptr is not None:
        if INCLUDE_PROMPT:
            repeated |= is_partial
        repeated |= _in_earlier_rows(
            contexts, req_indices_ptr, local_positions_ptr, NUM_SPECULATIVE_STEPS, MAX_HISTORY
        )
    if steps_ptr is None:
        torch.logical_and(repeated, is_request, out=output_ptr)
        return
    assert prior_contexts_ptr is not None
    assert enabled_ptr is not None
    if INCLUDE_PROMPT:
        repeated |= is_partial
    prior = prior_contexts_ptr[: contexts.shape[0]]
    step = constants.arange(NUM_SPECULATIVE_STEPS, contexts.device)
    here = steps_ptr.unsqueeze(1)
    counts = step < here
    if MAX_HISTORY:
        counts &= step >= here - MAX_HISTORY
    repeated |= ((prior == contexts.unsqueeze(1)).all(2) & counts).any(1)
    is_now = ((step == here) & is_request.unsqueeze(1)).unsqueeze(2)
    torch.where(is_now, contexts.unsqueeze(1).to(prior.dtype), prior, out=prior)
    output_ptr.copy_(enabled_ptr & ~repeated & is_request)


def _in_history(
    contexts: torch.Tensor,
    all_token_ids: torch.Tensor,
    request: torch.Tensor,
    total_len: torch.Tensor,
    history_len: torch.Tensor,
    newer: torch.Tensor | None,
    max_history: int,
) -> torch.Tensor:
    """[n] bool: the context stands before one of the last places of its history.

    A history is the last history_len [n] of total_len [n] tokens; what stands before it is -1.
    newer: [n], places that count towards max_history (0: no bound) and have no tokens yet.
    """
    most = all_token_ids.shape[1]
    window = min(max_history, most) if max_history else most
    size = max(1, _MAX_ELEMENTS // window)
    found = []
    for begin in range(0, contexts.shape[0], size):
        rows = slice(begin, begin + size)
        bound = history_len[rows]
        if max_history and newer is not None:
            bound = torch.minimum(bound, max_history - newer[rows])
        first = request[rows].to(torch.int64) * all_token_ids.stride(0)
        found.append(
            _in_window(
                contexts[rows],
                all_token_ids.view(-1),
                first + total_len[rows],
                history_len[rows],
                bound,
                window,
            )
        )
    return found[0] if len(found) == 1 else torch.cat(found)


def _in_window(
    contexts: torch.Tensor,
    tokens: torch.Tensor,
    end: torch.Tensor,
    history_len: torch.Tensor,
    bound: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """`_in_history` of as many rows as memory allows.

    tokens: of all requests, 1-D; end: [n] int64, where each row's history ends in it; bound: [n],
    how many of its last places count, window at most.
    """
    width = contexts.shape[1]
    # Counted back from the end, since a history's length is the device's: its last place is 1.
    back = constants.arange(window, contexts.device) + 1
    counts = back <= bound.unsqueeze(1)
    for place in range(width):
        distance = back + (width - place)  # of the context's token to the end
        is_there = distance <= history_len.unsqueeze(1)
        source = (end.unsqueeze(1) - distance).clamp_min(0)
        token = tokens.index_select(0, source.view(-1)).view(source.shape)
        counts &= token.masked_fill_(~is_there, -1) == contexts[:, place : place + 1]
    return counts.any(1)


def _in_earlier_rows(
    contexts: torch.Tensor,
    request: torch.Tensor,
    local_position: torch.Tensor,
    num_steps: int,
    max_history: int,
) -> torch.Tensor:
    """[n] bool: an earlier row of the same request's block has the same context."""
    reach = min(num_steps, max_history) if max_history else num_steps
    offset = constants.arange(reach, contexts.device) + 1
    row = constants.arange(contexts.shape[0], contexts.device).unsqueeze(1)
    prior = (row - offset).clamp_min(0)

    def of_prior(values: torch.Tensor) -> torch.Tensor:
        return values.index_select(0, prior.view(-1)).view(*prior.shape, *values.shape[1:])

    mine = local_position.unsqueeze(1)
    same = (row >= offset) & (mine >= offset)
    same &= of_prior(request) == request.unsqueeze(1)
    same &= of_prior(local_position) + offset == mine
    same &= (of_prior(contexts) == contexts.unsqueeze(1)).all(2)
    return same.any(1)
