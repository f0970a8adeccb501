# SPDX-License-Identifier: Apache-2.0
"""How many rows of a prompt core scores at once.

Reason, core versions and when this goes: `differences.PROMPT_SCORES`.
"""

from __future__ import annotations

from vllm_ascend_mrv2.compat.differences import PROMPT_SCORES


def chunk_rows() -> int:
    """Rows of logits that exist at once while a prompt is scored."""
    from vllm.v1.worker.gpu.sample import prompt_logprob

    if not hasattr(prompt_logprob, "CHUNK_SIZE"):
        return _before()
    return int(prompt_logprob.CHUNK_SIZE)


@PROMPT_SCORES.serves
def _before() -> int:
    return 1024  # a local name of `compute_prompt_logprobs_with_chunking`
