# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernel, so that launches by keyword bind)
"""Sampling masks of cores where a request has one row of them.

Reason, core versions and when this goes: `differences.SAMPLING_MASK`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vllm_ascend_mrv2.compat import kernel_registry
from vllm_ascend_mrv2.compat.differences import SAMPLING_MASK


def kernel_for(kernel: Any, compact: Callable[..., None]) -> Callable[..., None]:
    """The function that serves the launches of core's `kernel`.

    compact: serves a kernel that is told which logits rows a request has.
    """
    if "cu_num_logits_ptr" in kernel_registry.argument_names(kernel):
        return compact
    return _one_row_each(compact)


@SAMPLING_MASK.serves
def _one_row_each(compact: Callable[..., None]) -> Callable[..., None]:
    def compact_sampling_mask(
        logits_ptr: torch.Tensor,
        logits_row_stride: int,
        logits_col_stride: int,
        num_sampled_tokens_ptr: torch.Tensor,
        token_ids_ptr: torch.Tensor,
        token_ids_row_stride: int,
        packed_mask_ptr: torch.Tensor,
        packed_mask_row_stride: int,
        counts_ptr: torch.Tensor,
        vocab_size: int,
        max_num_kept: int,
        BLOCK_SIZE: int,
    ) -> None:
        num_rows = counts_ptr.shape[0]
        first_row = torch.arange(num_rows + 1, dtype=torch.int32, device=counts_ptr.device)
        compact(
            logits_ptr,
            logits_row_stride,
            logits_col_stride,
            first_row,
            num_sampled_tokens_ptr.clamp(max=1),
            token_ids_ptr,
            token_ids_row_stride,
            packed_mask_ptr,
            packed_mask_row_stride,
            counts_ptr,
            vocab_size,
            max_num_kept,
            ROWS_PER_REQUEST=1,
            BLOCK_SIZE=BLOCK_SIZE,
        )

    return compact_sampling_mask


def as_lists(masks: Any, num_sampled: Any) -> Any:
    """Core's lists of a step's masks, which are on the host. num_sampled: [R] int32, NumPy."""
    if hasattr(masks, "rows_per_request"):
        return masks.tolists(num_sampled)
    return masks.tolists()
