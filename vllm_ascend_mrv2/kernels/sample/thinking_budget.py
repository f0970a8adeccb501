# SPDX-License-Identifier: Apache-2.0
"""Thinking budgets of core's `v1/worker/gpu/sample/thinking_budget.py`.

Core scans each sequence backwards in blocks, then remembers how far it got. Here the rows' whole
sequences are compared at once, as wide as the longest of the batch (the host knows a bound), and
the memory is kept as core keeps it. The drafts before a logit count as if they were output already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_ascend_mrv2.kernels import constants, upload

if TYPE_CHECKING:  # not in every core: see compat/logits_context.py
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext

_COLD_SCAN_BLOCK = 1024  # core's: a first scan stops at the last such block with a marker
_FORCED_LOGIT = 1.0e9


def apply(state: Any, logits: torch.Tensor, context: LogitsContext) -> None:
    """Core's `ThinkingBudgetState.apply`: logits [n, vocab_size], changed in place."""
    requests = context.idx_mapping_np
    if not state.enabled or not state.use_thinking_budget[requests].any():
        return
    apply_thinking_budget(
        logits,
        context.idx_mapping,
        context.expanded_idx_mapping,
        state.thinking_token_budget.gpu,
        state.req_states.all_token_ids.gpu,
        state.req_states.total_len.gpu,
        context.input_ids,
        context.expanded_local_pos,
        state.cached_last_start,
        state.cached_last_end,
        state.cached_scan_pos,
        state.reasoning_start_token_ids,
        state.natural_reasoning_end_token_ids,
        state.reasoning_end_token_ids,
        # A caller's bound may be that of the step's tokens; what a request came with is known.
        max_total_len=max(
            int(context.seq_lens_upper_bound_np.max()),
            int(state.req_states.prefill_len.np[requests].max()),
        ),
    )


def reset(state: Any) -> None:
    """Core's `ThinkingBudgetState.apply_staged_writes`, without its index_fill_.

    torch_npu reads an index_fill_ index on the host, which waits for the device.
    """
    if not state.enabled:
        return
    if state._reset_reqs:
        rows = upload.stage(np.asarray(state._reset_reqs, np.int64), state.device)

        def forget() -> None:
            none = constants.scalar(-1, state.device, torch.int32)
            state.cached_last_start[rows] = none
            state.cached_last_end[rows] = none
            state.cached_scan_pos[rows] = constants.scalar(0, state.device, torch.int32)

        upload.after(forget)
        state._reset_reqs.clear()
    if state._budget_dirty:
        state.thinking_token_budget.copy_to_uva()
        state._budget_dirty = False


def _matches(tokens: torch.Tensor, marker: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[n, w] bool: the marker stands at that position, wholly inside the row's length.

    tokens: [n, w] int32; marker: [m] int32; lengths: [n, 1] int32.
    """
    num_rows, width = tokens.shape
    marker_len = marker.shape[0]
    if width < marker_len:
        return torch.zeros(num_rows, width, dtype=torch.bool, device=tokens.device)
    found = (tokens.unfold(1, marker_len, 1) == marker).all(-1)
    found = torch.nn.functional.pad(found, (0, marker_len - 1))
    end = constants.arange(width, tokens.device, torch.int32) + marker_len
    return found.logical_and_(end <= lengths)


def _last(found: torch.Tensor) -> torch.Tensor:
    """[n, 1] int32: the last position found, -1 for none. found: [n, w] bool."""
    position = constants.arange(found.shape[1], found.device, torch.int32) + 1
    return (position * found).amax(-1, keepdim=True) - 1


def apply_thinking_budget(
    logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    thinking_token_budget: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    cached_last_start: torch.Tensor,
    cached_last_end: torch.Tensor,
    cached_scan_pos: torch.Tensor,
    reasoning_start_token_ids: torch.Tensor,
    natural_reasoning_end_token_ids: torch.Tensor,
    reasoning_end_token_ids: torch.Tensor,
    max_total_len: int,
) -> None:
    """Force the end of reasoning in rows that used up their budget.

    logits: [n, vocab_size], in place; idx_mapping: [R] int64, and expanded_idx_mapping: [n] int64,
    its request of each logit; input_ids and expanded_local_pos: [n], the input token of each logit
    and its place among its request's; thinking_token_budget (negative: none), total_len and
    cached_*: [max_num_reqs] int32; all_token_ids: [max_num_reqs, max_model_len] int32; markers: [m]
    int32; max_total_len: at least every row's total_len (host).
    """
    _follow_markers(
        idx_mapping,
        thinking_token_budget,
        all_token_ids,
        total_len,
        cached_last_start,
        cached_last_end,
        cached_scan_pos,
        reasoning_start_token_ids,
        natural_reasoning_end_token_ids,
        max_total_len,
    )
    rows = expanded_idx_mapping

    def of_row(table: torch.Tensor) -> torch.Tensor:
        return table.index_select(0, rows).unsqueeze(1)

    committed, drafts = of_row(total_len), expanded_local_pos.unsqueeze(1)
    length = committed + drafts
    markers = (reasoning_start_token_ids, natural_reasoning_end_token_ids, reasoning_end_token_ids)
    reach = max(marker.shape[0] for marker in markers) - 1
    # At most so many drafts has a request; the end of its sequence, drafts included.
    most_drafts = logits.shape[0] - idx_mapping.shape[0]
    begin = committed - reach
    tail = _tail(
        all_token_ids, rows, input_ids, expanded_local_pos, begin, committed, reach + most_drafts
    )

    def last_in_drafts(marker: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        place = begin + constants.arange(tail.shape[1], tail.device, torch.int32)
        found = _matches(tail, marker, length - begin).logical_and_(
            place > committed - marker.shape[0]
        )
        found.logical_and_(place >= 0)
        position = _last(found)
        return torch.where(position >= 0, begin + position, before)

    start, end = of_row(cached_last_start), of_row(cached_last_end)
    if most_drafts:
        start = last_in_drafts(reasoning_start_token_ids, start)
        end = last_in_drafts(natural_reasoning_end_token_ids, end)
    budget = of_row(thinking_token_budget)
    used = length - start - reasoning_start_token_ids.shape[0]
    force = (budget >= 0) & (start >= 0) & (start > end) & (used >= budget)

    # How much of the forced end the sequence already ends with: the longest proper prefix.
    written = torch.zeros_like(length)
    for prefix_len in range(1, reasoning_end_token_ids.shape[0]):
        at = length - prefix_len
        column = at - begin + constants.arange(prefix_len, tail.device, torch.int32)
        suffix = tail.gather(1, column.to(torch.int64))
        same = (suffix == reasoning_end_token_ids[:prefix_len]).all(-1, keepdim=True)
        written.masked_fill_(same & (at >= 0), prefix_len)
    token = reasoning_end_token_ids.index_select(0, written.squeeze(1)).to(torch.int64).unsqueeze(1)
    current = logits.gather(1, token)
    logits.scatter_(1, token, current.masked_fill(force, _FORCED_LOGIT))


def _tail(
    all_token_ids: torch.Tensor,
    rows: torch.Tensor,
    input_ids: torch.Tensor,
    local_pos: torch.Tensor,
    begin: torch.Tensor,
    committed: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Tokens from place `begin` [n, 1] on, [n, width] int32: committed ones, then drafts.

    Places before 0 and past a row's drafts hold any token.
    """
    num_rows, device = rows.shape[0], rows.device
    place = begin + constants.arange(width, device, torch.int32)
    source = place.clamp(0, all_token_ids.shape[1] - 1).to(torch.int64)
    source = torch.add(source, rows.unsqueeze(1), alpha=all_token_ids.stride(0)).flatten()
    known = all_token_ids.view(-1).index_select(0, source).view(num_rows, width)
    first = (constants.arange(num_rows, device, torch.int32) - local_pos).unsqueeze(1)
    drafted = (place - committed + 1 + first).clamp_(0, num_rows - 1).flatten()
    drafted = input_ids.index_select(0, drafted).view(num_rows, width)
    return torch.where(place < committed, known, drafted.to(known.dtype))


def _follow_markers(
    idx_mapping: torch.Tensor,
    thinking_token_budget: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    cached_last_start: torch.Tensor,
    cached_last_end: torch.Tensor,
    cached_scan_pos: torch.Tensor,
    reasoning_start_token_ids: torch.Tensor,
    natural_reasoning_end_token_ids: torch.Tensor,
    max_total_len: int,
) -> None:
    """Find the last markers of each request's committed tokens, and remember them. In place."""
    rows = idx_mapping

    def of_row(table: torch.Tensor) -> torch.Tensor:
        return table.index_select(0, rows).unsqueeze(1)

    width = min(max_total_len, all_token_ids.shape[1])
    tokens = all_token_ids[:, :width].index_select(0, rows)
    budget, length = of_row(thinking_token_budget), of_row(total_len)
    has_budget = budget >= 0
    start_len = reasoning_start_token_ids.shape[0]
    natural_len = natural_reasoning_end_token_ids.shape[0]

    old_scan, old_start, old_end = map(
        of_row, (cached_scan_pos, cached_last_start, cached_last_end)
    )
    stale = old_scan > length
    scan = old_scan.masked_fill(stale, 0)
    start = old_start.masked_fill(stale, -1)
    end = old_end.masked_fill(stale, -1)
    cold = (scan == 0) & (start < 0) & (end < 0)

    unscanned = constants.arange(width, tokens.device, torch.int32) >= scan
    found_start = _last(_matches(tokens, reasoning_start_token_ids, length) & unscanned)
    found_end = _last(_matches(tokens, natural_reasoning_end_token_ids, length) & unscanned)
    # A cold scan of core ends at the last block with a marker, and sees the other marker only
    # there.
    last_marker = torch.maximum(found_start, found_end)
    block = (length - 1 - last_marker) // _COLD_SCAN_BLOCK

    def in_last_block(found: torch.Tensor) -> torch.Tensor:
        same = (length - 1 - found) // _COLD_SCAN_BLOCK == block
        return found.masked_fill(cold & ~same, -1)

    start = torch.maximum(start, in_last_block(found_start))
    end = torch.maximum(end, in_last_block(found_end))
    new_scan = (length - (max(start_len, natural_len) - 1)).clamp_min_(0)
    for cache, new, old in (
        (cached_last_start, start, old_start),
        (cached_last_end, end, old_end),
        (cached_scan_pos, new_scan, old_scan),
    ):
        cache[rows] = torch.where(has_budget, new, old).squeeze(1)
