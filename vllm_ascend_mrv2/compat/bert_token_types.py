# SPDX-License-Identifier: Apache-2.0
"""Reads the token types that core's BERT keeps in a bit of the token ids, without a shift.

Why: core shifts right by a Python number, which torch_npu brings to the device by an asynchronous
copy from pinned memory, unproven on CANN and a copy in every step. The bit is one or not, so that a
comparison says the same.
Core versions: 0.30 to 0.33. Goes when core compares, or torch_npu shifts by a number as it is.
"""

from __future__ import annotations

import torch


def decode_token_type_ids(input_ids: torch.Tensor) -> torch.Tensor:
    """Token types, 0 or 1 [T] of input_ids' dtype; input_ids [T] keep the token alone, in place."""
    from vllm.model_executor.models import bert

    mask = 1 << bert.TOKEN_TYPE_SHIFT
    token_types = (input_ids & mask).ne_(0)
    input_ids.bitwise_and_(~mask)
    return token_types


def install() -> None:
    """Bind it in core's encoders. Idempotent. Imports them: only for a start that pools."""
    from vllm.model_executor.models import bert, roberta

    bert._decode_token_type_ids = decode_token_type_ids
    roberta._decode_token_type_ids = decode_token_type_ids
