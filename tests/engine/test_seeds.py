# SPDX-License-Identifier: Apache-2.0
"""The serving tests' prompts under many seeds of the adversarial scheduler, on engines with graphs.

Every model, dtype and KV cache of test_exactness.py, with async scheduling and without, against
transformers. In process, where a seed costs no start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine import prompts
from tests.engine.cases import (
    CHUNK_TOKENS,
    MAX_MODEL_LEN,
    SMOLLM2,
    SMOLLM2_TIGHT,
    TINY,
    TINY_TIGHT,
    Case,
)
from tests.engine.in_process import adversarial, engine, runner_of
from tests.engine.references import assert_equal_but_for_ties
from tests.engine.test_exactness import MAX_TIE_SHARE, NEW_TOKENS

SEEDS = range(1, 21)
pytestmark = pytest.mark.long


@pytest.mark.parametrize("async_scheduling", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=pytest.mark.xdist_group(f"seeds-{case.model}"))
        for case in (*TINY, *TINY_TIGHT, SMOLLM2, SMOLLM2_TIGHT)
    ],
)
def test_tokens_are_the_references_under_every_seed(
    case: Case, async_scheduling: bool, checkpoint_of: Callable[[Case], Path]
) -> None:
    from vllm import SamplingParams

    checkpoint = checkpoint_of(case)
    # A real model takes a hundred times as long: few of its prompts. The short ones, of which 16
    # run at once, outgrow the tight cache.
    every = {SMOLLM2: 4, SMOLLM2_TIGHT: 2}.get(case, 1)
    asked = prompts.varied(checkpoint)[::every]
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    with engine(
        checkpoint,
        dtype=case.dtype,
        async_scheduling=async_scheduling,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=16,
        max_num_batched_tokens=CHUNK_TOKENS,
        block_size=16 if case.is_tight else 128,
        num_gpu_blocks_override=72 if case.is_tight else 96,
        gpu_memory_utilization=0.3,
        disable_log_stats=False,
    ) as llm:
        judged: list[list[list[int]]] = []  # a reference takes longer than a run
        for seed in SEEDS:
            llm.reset_prefix_cache()
            with adversarial(seed):
                made = llm.generate(
                    [{"prompt_token_ids": prompt} for prompt in asked], greedy, use_tqdm=False
                )
            tokens = [list(answer.outputs[0].token_ids) for answer in made]
            if tokens not in judged:
                assert_equal_but_for_ties(
                    checkpoint, case.dtype, asked, tokens, NEW_TOKENS, MAX_TIE_SHARE[case.dtype]
                )
                judged.append(tokens)
        verdicts = runner_of(llm).step_log.counts
        assert sum(count for verdict, count in verdicts.items() if verdict.sampling) > 100
        if case.is_tight:
            preemptions = [m for m in llm.get_metrics() if m.name == "vllm:num_preemptions"]
            assert sum(metric.value for metric in preemptions) > 0, "no request was preempted"
