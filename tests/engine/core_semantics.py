# SPDX-License-Identifier: Apache-2.0
"""Whether an engine's answers are what core's own sampling kernels make of the model's logits.

Logits are transformers' on the CPU, after the tokens that the engine served; sampling is core's
sampler with core's kernels, interpreted, in the oracle's process. Float32 only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.core_oracle import CoreOracle
from vllm_ascend_mrv2.cli.models import tiny

TOLERANCE = 2e-4  # of a log probability or logit: sums of float32 in another order


def assert_core_s(
    oracle: CoreOracle,
    checkpoint: Path,
    prompts: Sequence[Sequence[int]],
    parameters: Sequence[Mapping[str, Any]],
    answers: Sequence[Any],
    **options: Any,
) -> None:
    """Fail where a token, or a log probability, is not core's.

    parameters: see tests/helpers/combinations.py; answers: vLLM's CompletionOutput of each prompt;
    options: of tests/helpers/sampler_run.py's run.
    """
    served = [list(answer.token_ids) for answer in answers]
    plain = [list(prompt) for prompt in prompts]
    (logits, _), _ = oracle.call(
        "tests.helpers.teacher_forced.logits", str(checkpoint), plain, served
    )
    steps, _ = oracle.call(
        "tests.helpers.sampler_run.run",
        list(parameters),
        len(logits),
        7,
        prompts=plain,
        logits=logits,
        more_stop_token_ids=(tiny.EOS,),
        **options,
    )
    wrong = [
        f"{parameters[row]}: new token {step} is {token}, core draws {made}"
        for step, result in enumerate(steps)
        for row, made in enumerate(result["sampled"].tolist())
        if step < len(served[row]) and made != (token := served[row][step])
    ]
    assert not wrong, "\n".join(wrong)
    for row, (asked, answer) in enumerate(zip(parameters, answers, strict=True)):
        if "logprobs" in asked or "logprob_token_ids" in asked:
            own = asked.get("logprob_token_ids")
            columns = 1 + (len(own) if own else asked["logprobs"])
            for step, position in enumerate(answer.logprobs):
                tokens = steps[step]["token_ids"][row, :columns].tolist()
                values = steps[step]["logprobs"][row, :columns].tolist()
                wanted = dict(zip(tokens, values, strict=True))
                got = {token: entry.logprob for token, entry in position.items()}
                assert got == pytest.approx(wanted, abs=TOLERANCE), (asked, step)
                rank = position[answer.token_ids[step]].rank
                assert rank == int(steps[step]["ranks"][row]), (asked, step)
