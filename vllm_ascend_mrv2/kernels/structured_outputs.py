# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Grammar bitmasks of core's `v1/worker/gpu/structured_outputs.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_ascend_mrv2.compat import grammar_rows
from vllm_ascend_mrv2.kernels import bitmask as bits
from vllm_ascend_mrv2.kernels import upload


def apply_bitmask(
    worker: Any,
    logits: torch.Tensor,
    input_batch: InputBatch,
    grammar_req_ids: list[str],
    grammar_bitmask: npt.NDArray[np.int32],
) -> None:
    """Core's `StructuredOutputsWorker.apply_grammar_bitmask` with one staged copy.

    grammar_bitmask: [m, ceil(vocab_size / 32)] int32, on the host; logits: [num_logits,
    vocab_size], masked in place.
    """
    if not grammar_req_ids:
        return
    mapping = grammar_rows.mapping(worker, input_batch, grammar_req_ids)
    assert len(mapping) == len(grammar_bitmask)
    masks = upload.stage(grammar_bitmask, logits.device)
    indices = upload.stage(np.asarray(mapping, np.int32), logits.device)
    upload.flush()
    apply_grammar_bitmask(
        logits,
        logits.stride(0),
        indices,
        input_batch.cu_num_logits,
        masks,
        masks.stride(0),
        logits.shape[-1],
        MASK_STRIDE=worker.mask_stride,
        BLOCK_SIZE=0,
    )


def apply_grammar_bitmask(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    logits_indices_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    bitmask_ptr: torch.Tensor,
    bitmask_stride: int,
    vocab_size: int,
    MASK_STRIDE: int,
    BLOCK_SIZE: int,
) -> None:
    """-inf for tokens that a request's grammar forbids: logits [num_logits, vocab_size], in place.

    bitmask: [m, ceil(vocab_size / 32)] int32, a set bit allows; logits_indices: [m] int32,
    request * MASK_STRIDE + position; cu_num_logits: [R + 1] int32. A mask whose position is past
    its request's logits has no effect.
    """
    num_logits = logits_ptr.shape[0]
    request = logits_indices_ptr // MASK_STRIDE
    position = logits_indices_ptr % MASK_STRIDE
    row = cu_num_logits_ptr.index_select(0, request).add_(position)
    active = row < cu_num_logits_ptr.index_select(0, request + 1)
    # the words of a mask without effect go to a row past the last
    target = row.masked_fill_(~active, num_logits).to(torch.int64)
    forbidden = torch.zeros(
        num_logits + 1, bitmask_ptr.shape[1], dtype=bitmask_ptr.dtype, device=bitmask_ptr.device
    )
    forbidden[target] = bitmask_ptr.bitwise_not()
    logits_ptr.masked_fill_(bits.unpack(forbidden[:num_logits], vocab_size), float("-inf"))
