# SPDX-License-Identifier: Apache-2.0
"""Token types of sentence pairs, of core's `v1/worker/gpu/model_states/encoder_only.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.encoder_only import EncoderOnlyModelState

from vllm_ascend_mrv2.kernels import upload


def prepare_inputs(state: Any, input_batch: InputBatch, req_states: Any) -> dict[str, Any]:
    """Core's `EncoderOnlyModelState.prepare_inputs` with one staged copy."""
    inputs = super(EncoderOnlyModelState, state).prepare_inputs(input_batch, req_states)
    if not state.token_type_ids:
        return inputs
    types = np.zeros(input_batch.num_tokens_after_padding, np.int32)
    starts = input_batch.query_start_loc_np
    for row, req_id in enumerate(input_batch.req_ids):
        if (own := state.token_type_ids.get(req_id)) is not None:
            begin, end = int(starts[row]), int(starts[row + 1])
            first = int(input_batch.num_computed_tokens_np[row])
            types[begin:end] = own[first : first + end - begin].numpy()
    inputs["token_type_ids"] = upload.tensor_h2d(types, state.device)
    return inputs
