# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Target tokens of prompt log probabilities: core's `v1/worker/gpu/sample/prompt_logprob.py`."""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants, ragged


def prompt_logprobs_token_ids(
    prompt_logprobs_token_ids_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """Write the token after each scheduled one, [T] int64, T all of the batch's tokens.

    query_start_loc: [>= R + 1] int32; idx_mapping: [R] int64; num_computed_tokens: [max_num_reqs]
    int32; all_token_ids: [max_num_reqs, max_model_len] int32, contiguous. The token after a full
    sequence's last one is arbitrary, as in core: nobody reads it.
    """
    num_reqs, num_tokens = idx_mapping_ptr.shape[0], prompt_logprobs_token_ids_ptr.shape[0]
    starts = query_start_loc_ptr
    rows = ragged.rows_of(starts, num_reqs, num_tokens)
    num_computed = num_computed_tokens_ptr.index_select(0, idx_mapping_ptr)
    position = (num_computed - starts[:num_reqs]).index_select(0, rows)
    position = (position + constants.arange(num_tokens, rows.device, torch.int32)).add_(1)
    position.clamp_(max=all_token_ids_ptr.shape[1] - 1)
    source = torch.add(position, idx_mapping_ptr.index_select(0, rows), alpha=all_token_ids_stride)
    tokens = all_token_ids_ptr.view(-1).index_select(0, source)
    prompt_logprobs_token_ids_ptr.copy_(tokens)
