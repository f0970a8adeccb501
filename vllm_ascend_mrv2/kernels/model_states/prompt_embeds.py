# SPDX-License-Identifier: Apache-2.0
"""Prompt embeddings of core's `v1/worker/gpu/model_states/prompt_embeds.py`.

Core's kernel finds each request's tensor through a device table of addresses. Here the host, which
knows exactly what a prefilling row computes, copies the slices: one copy per request that is in the
middle of an embedded prompt, none for the others.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.input_batch import InputBatch


def apply_staged_writes(state: Any) -> None:
    """Core's `PromptEmbedsState.apply_staged_writes`: no table of addresses goes to the device."""


def apply(
    state: Any,
    input_batch: InputBatch,
    num_computed_tokens: torch.Tensor,
    inputs_embeds: torch.Tensor,
) -> None:
    """Core's `PromptEmbedsState.apply`: overlay onto inputs_embeds [T, hidden_size], in place."""
    if not state.gpu_tensors:
        return
    starts = input_batch.query_start_loc_np
    # For a row inside its prompt the host's count is exact: only drafts could make it a bound.
    computed = input_batch.num_computed_prefill_tokens_np
    lengths = state.embeds_lens.np[input_batch.idx_mapping_np]
    for row in (lengths > computed).nonzero()[0].tolist():
        embeds, is_token_id = state.gpu_tensors[input_batch.req_ids[row]]
        begin = int(computed[row])
        count = min(int(starts[row + 1] - starts[row]), int(lengths[row]) - begin)
        target = inputs_embeds[int(starts[row]) : int(starts[row]) + count]
        source = embeds[begin : begin + count]
        if is_token_id is not None:
            source = torch.where(
                is_token_id[begin : begin + count].unsqueeze(1) != 0, target, source
            )
        target.copy_(source)
