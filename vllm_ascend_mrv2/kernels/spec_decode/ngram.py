# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""n-gram drafts of core's `v1/worker/gpu/spec_decode/ngram/speculator.py`.

A request's last n tokens are looked for in all that came before, the longest n and the rightmost
place first; what followed there is the draft.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_ascend_mrv2.kernels import constants


def scan(
    token_ids_ptr: torch.Tensor,
    token_ids_stride: int,
    idx_mapping_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    num_sampled_ptr: torch.Tensor,
    scratch_ptr: torch.Tensor,
    scratch_stride: int,
    L: int,
    MIN_N: int,
    MAX_N: int,
    MAX_N_PO2: int,
    BLOCK_L: int,
    **launch_options: Any,
) -> None:
    """Write the best match that begins in each block of positions, n * (L + 1) + position + 1.

    scratch: [>= R, num_blocks] int64, 0 for none; token_ids: [max_num_reqs, >= L] int32;
    idx_mapping: [R] int64; total_len: [max_num_reqs] int32; num_sampled: [R] int32, 0 for rows that
    draft nothing.
    """
    rows, device = idx_mapping_ptr, token_ids_ptr.device
    num_reqs, num_blocks = rows.shape[0], scratch_ptr.shape[1]
    tokens = token_ids_ptr[:, :L].index_select(0, rows)
    length = total_len_ptr.index_select(0, rows).to(torch.int64).unsqueeze(1)
    eligible = (num_sampled_ptr[:num_reqs].unsqueeze(1) > 0).logical_and_(length >= MIN_N)
    # Position of a match's last token, and how many tokens up to there equal the sequence's last.
    end = constants.arange(L, device)
    in_reach = (end <= length - 2).logical_and_(eligible)
    best = torch.zeros(num_reqs, L, dtype=torch.int64, device=device)
    for n in range(1, MAX_N + 1):
        suffix = tokens.gather(1, (length - n).clamp_(0, L - 1))
        same = torch.zeros(num_reqs, L, dtype=torch.bool, device=device)
        same[:, n - 1 :] = tokens[:, : L - n + 1] == suffix
        in_reach = in_reach.logical_and(same)
        if n >= MIN_N:
            score = (end + (n * (L + 1) - n + 2)).mul(in_reach)
            # to the column of its first token; the last n - 1 columns begin no such match
            first = torch.nn.functional.pad(score[:, n - 1 :], (0, n - 1))
            best = torch.maximum(best, first)
    padded = torch.nn.functional.pad(best, (0, num_blocks * BLOCK_L - L))
    scratch_ptr[:num_reqs] = padded.view(num_reqs, num_blocks, BLOCK_L).amax(2)


def finalize(
    token_ids_ptr: torch.Tensor,
    token_ids_stride: int,
    idx_mapping_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    num_sampled_ptr: torch.Tensor,
    last_sampled_ptr: torch.Tensor,
    scratch_ptr: torch.Tensor,
    scratch_stride: int,
    drafts_ptr: torch.Tensor,
    L: int,
    N_BLOCKS: int,
    K: int,
    K_PO2: int,
    N_BLOCKS_PO2: int,
    **launch_options: Any,
) -> None:
    """Write what followed the best match: drafts [>= R, K] int64.

    Where nothing follows, or nothing matched, the last sampled token stands ([max_num_reqs] int64).
    """
    rows, device = idx_mapping_ptr, token_ids_ptr.device
    num_reqs = rows.shape[0]
    score = scratch_ptr[:num_reqs, :N_BLOCKS].amax(1, keepdim=True)
    found = (score > 0).logical_and_(num_sampled_ptr[:num_reqs].unsqueeze(1) > 0)
    match = (score - 1).clamp_min_(0)
    n = match // (L + 1)
    begin = (match - n * (L + 1) + n).mul_(found)
    column = constants.arange(K, device)
    source = begin + column
    length = total_len_ptr.index_select(0, rows).to(torch.int64).unsqueeze(1)
    valid = (source < length).logical_and_(found)
    flat = torch.add(source.clamp_(max=L - 1), rows.unsqueeze(1), alpha=token_ids_stride).flatten()
    drafted = token_ids_ptr.view(-1).index_select(0, flat).to(torch.int64).view(num_reqs, K)
    last = last_sampled_ptr.index_select(0, rows).unsqueeze(1)
    torch.where(valid, drafted, last, out=drafts_ptr[:num_reqs])
