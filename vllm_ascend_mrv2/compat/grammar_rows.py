# SPDX-License-Identifier: Apache-2.0
"""Which logits the rows of a step's grammar bitmask are for.

Reason, core versions and when this goes: `differences.GRAMMAR_ROWS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ascend_mrv2.compat.differences import GRAMMAR_ROWS

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker


def mapping(
    worker: StructuredOutputsWorker, input_batch: InputBatch, grammar_req_ids: list[str]
) -> list[int]:
    """Of each row: request of the batch * mask_stride + position among its logits."""
    from vllm.v1.worker.gpu import structured_outputs

    if not hasattr(structured_outputs, "_build_grammar_mapping"):
        return _by_stride(worker, input_batch, grammar_req_ids)
    made: list[int] = structured_outputs._build_grammar_mapping(
        input_batch.req_ids,
        grammar_req_ids,
        input_batch.cu_num_logits_np,
        input_batch.num_draft_tokens_per_req,
        worker.num_bonus_tokens,
        worker.mask_stride,
    )
    return made


@GRAMMAR_ROWS.serves
def _by_stride(
    worker: StructuredOutputsWorker, input_batch: InputBatch, grammar_req_ids: list[str]
) -> list[int]:
    first = {req_id: row * worker.mask_stride for row, req_id in enumerate(input_batch.req_ids)}
    return [first[req_id] + i for req_id in grammar_req_ids for i in range(worker.mask_stride)]
