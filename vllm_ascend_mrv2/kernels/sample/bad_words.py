# SPDX-License-Identifier: Apache-2.0
"""Bad words of core's `v1/worker/gpu/sample/bad_words.py`.

Core's kernel walks one word per program; here all words of a row are compared at once, on the flat
list of their tokens. The drafts before a logit count as if they were output already.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants


def apply_bad_words(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    bad_word_token_ids: torch.Tensor,
    bad_word_offsets: torch.Tensor,
    num_bad_words: torch.Tensor,
    all_token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    max_num_bad_words: int,
) -> None:
    """Core's `apply_bad_words`: -inf for the last token of words whose other tokens were just
    output.

    logits: [n, vocab_size], in place; expanded_idx_mapping: [n] int64; bad_word_token_ids:
    [max_num_reqs, k] int32, the words' tokens end to end; bad_word_offsets: [max_num_reqs, w + 1]
    int32; num_bad_words, prompt_len, total_len: [max_num_reqs] int32; all_token_ids: [max_num_reqs,
    max_model_len] int32, contiguous; input_ids: [n] int32, the input token of each logit;
    expanded_local_pos: [n] int32, its place among its request's; max_num_bad_words: the most of
    any row (host).
    """
    rows, device = expanded_idx_mapping, logits.device
    num_rows, vocab_size = logits.shape
    width = bad_word_token_ids.shape[1]
    tokens = bad_word_token_ids.index_select(0, rows)
    offsets = bad_word_offsets[:, : max_num_bad_words + 1].index_select(0, rows).to(torch.int64)
    real = constants.arange(max_num_bad_words, device, torch.int32) < num_bad_words.index_select(
        0, rows
    ).unsqueeze(1)
    begin = offsets[:, :-1].masked_fill(~real, width)
    end = offsets[:, 1:].masked_fill(~real, width)

    # end of the word that each flat position belongs to: a step at each word's begin, summed up
    ends = torch.zeros(num_rows, width + 1, dtype=torch.int64, device=device)
    ends.scatter_add_(1, begin, (end - begin).mul_(real))
    ends = ends.cumsum(1)[:, :width]

    # A prefix token at flat position t must be the output token end - 1 - t places before the end.
    position = constants.arange(width, device)
    committed = total_len.index_select(0, rows).to(torch.int64).unsqueeze(1)
    num_drafts = expanded_local_pos.to(torch.int64).unsqueeze(1)
    length = committed + num_drafts
    place = (length - ends + (position + 1)).clamp_min_(0)
    source = place.clamp(max=all_token_ids.shape[1] - 1)
    source = torch.add(source, rows.unsqueeze(1), alpha=all_token_ids.stride(0))
    output = all_token_ids.view(-1).index_select(0, source.flatten()).view_as(tokens)
    # A draft at place p is the input of its request's logit number p - committed + 1.
    first = constants.arange(num_rows, device).unsqueeze(1) - num_drafts
    drafted = (place - committed + 1 + first).clamp_(0, num_rows - 1)
    drafted = input_ids.index_select(0, drafted.flatten()).view_as(tokens)
    output = torch.where(place < committed, output, drafted.to(output.dtype))
    differs = (output != tokens).logical_and_(position + 1 < ends)
    differing = torch.nn.functional.pad(differs.cumsum(1, dtype=torch.int32), (1, 0))

    last = (end - 1).clamp_min_(0)
    prefix_len = last - begin
    output_len = length - prompt_len.index_select(0, rows).unsqueeze(1)
    complete = differing.gather(1, end.clamp(max=width)) == differing.gather(1, begin)
    match = complete.logical_and_(real).logical_and_(prefix_len <= output_len)
    banned_token = tokens.gather(1, last).to(torch.int64).masked_fill_(~match, vocab_size)
    banned = torch.zeros(num_rows, vocab_size + 1, dtype=torch.bool, device=device)
    banned.scatter_(1, banned_token, True)
    logits.masked_fill_(banned[:, :vocab_size], float("-inf"))
