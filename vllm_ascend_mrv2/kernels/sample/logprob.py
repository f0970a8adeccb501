# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Log probabilities and ranks of core's `v1/worker/gpu/sample/logprob.py`."""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants

# Elements of [rows, vocab_size] float32 worked on at once: 16 MiB, since a prompt's logits are
# many rows and core's kernel, which materialises none of this, leaves no memory for it.
_CHUNK_ELEMENTS = 1 << 22


def topk_log_softmax(
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    topk_ids_ptr: torch.Tensor,
    *sizes: int,  # core 0.30 has one less
    **block_sizes: int,
) -> None:
    """Write log_softmax(logits)[ids]: output [n, topk] float32, logits [n, vocab_size], ids
    int64.
    """
    rows = max(1, _CHUNK_ELEMENTS // logits_ptr.shape[1])
    for start in range(0, logits_ptr.shape[0], rows):
        part = slice(start, start + rows)
        logprobs = torch.log_softmax(logits_ptr[part], dim=-1, dtype=torch.float32)
        output_ptr[part].copy_(logprobs.gather(1, topk_ids_ptr[part]))


def ranks(
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    token_ids_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Write how many logits of the row are at least the token's: output [n] int64, tokens [n]
    int64.
    """
    own = logits_ptr.gather(1, token_ids_ptr.unsqueeze(1))
    output_ptr.copy_((logits_ptr >= own).sum(-1, dtype=torch.int32))


def fill_logprob_token_ids(
    out_token_ids_ptr: torch.Tensor,
    out_token_ids_stride: int,
    out_valid_mask_ptr: torch.Tensor,
    out_valid_mask_stride: int,
    sampled_token_ids_ptr: torch.Tensor,
    topk_indices_ptr: torch.Tensor,
    topk_indices_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    num_per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_ptr: torch.Tensor,
    per_req_token_ids_stride: int,
    NUM_TOPK: int,
    PADDED_COLS: int,
) -> None:
    """Write which tokens each row reports: the sampled one, then its own list or the top k.

    out_token_ids: [n, 1 + columns] int64 and out_valid_mask: the same shape, bool, both zero
    before; topk_indices: [n, NUM_TOPK] int32; per_req_token_ids: [max_num_reqs, k] int32 with
    num_per_req_token_ids: [max_num_reqs] int32 entries used.
    """
    rows = expanded_idx_mapping_ptr
    num_columns = out_token_ids_ptr.shape[1] - 1
    out_token_ids_ptr[:, 0].copy_(sampled_token_ids_ptr)
    out_valid_mask_ptr[:, 0].fill_(True)

    def columns(tokens: torch.Tensor, used: int) -> torch.Tensor:
        tokens = tokens[:, : min(used, num_columns)]
        return torch.nn.functional.pad(tokens, (0, num_columns - tokens.shape[1]))

    num_own = num_per_req_token_ids_ptr.index_select(0, rows).unsqueeze(1)
    own = columns(per_req_token_ids_ptr.index_select(0, rows), per_req_token_ids_ptr.shape[1])
    has_own = num_own > 0
    tokens, num_valid = own, num_own
    if NUM_TOPK:
        tokens = torch.where(has_own, own, columns(topk_indices_ptr, NUM_TOPK))
        num_valid = num_own.masked_fill(~has_own, NUM_TOPK)
    column = constants.arange(num_columns, tokens.device, torch.int32)
    valid = column < num_valid
    out_token_ids_ptr[:, 1:].copy_(tokens * valid)
    out_valid_mask_ptr[:, 1:].copy_(valid)
