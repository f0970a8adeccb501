# SPDX-License-Identifier: Apache-2.0
"""Trace replay of core's `v1/worker/gpu/sample/trace_replay.py`."""

from __future__ import annotations

import torch


def trace_replay(
    sampled_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    trace_token_ids_ptr: torch.Tensor,
    trace_token_ids_stride: int,
    trace_len_ptr: torch.Tensor,
    total_len_ptr: torch.Tensor,
    prompt_len_ptr: torch.Tensor,
) -> None:
    """Replace sampled [n] int64 by the trace's token of this step, in place, where there is one.

    idx_mapping: [n] int64, negative for a row without a request; trace_token_ids: [max_num_reqs,
    max_model_len] int32, contiguous; lengths: [max_num_reqs] int32.
    """
    rows = idx_mapping_ptr.clamp_min(0)
    total, prompt = total_len_ptr.index_select(0, rows), prompt_len_ptr.index_select(0, rows)
    step = total - prompt
    replayed = (step >= 0) & (step < trace_len_ptr.index_select(0, rows)) & (idx_mapping_ptr >= 0)
    source = torch.add(step * replayed, rows, alpha=trace_token_ids_stride)
    token = trace_token_ids_ptr.view(-1).index_select(0, source).to(sampled_ptr.dtype)
    torch.where(replayed, token, sampled_ptr, out=sampled_ptr)
