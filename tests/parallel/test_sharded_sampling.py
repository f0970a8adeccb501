# SPDX-License-Identifier: Apache-2.0
"""Batch-sharded sampling on two tensor-parallel ranks: the tokens of one device, which samples all.

A mixed load (greedy and seeded, preemption, chunked prefill), forty combinations of parameters,
grammars, and drafts that are verified. The engine is in this process, its ranks are processes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine import speculation
from tests.engine.in_process import engine
from tests.engine.test_graph_exactness import combinations, tokens
from tests.parallel.layouts import IN_RANKS

pytestmark = pytest.mark.timeout(1800)
GRAMMARS = ({"choice": ["ab", "cab"]}, {"regex": "[a-f]{9}"}, {"regex": "(x|yy){4}z"})
REQUESTS = 25


def sharded(checkpoint: Path, **more: Any) -> AbstractContextManager[Any]:
    return engine(
        checkpoint,
        tensor_parallel_size=2,
        enable_batch_sharded_sampling=True,
        worker_extension_cls=IN_RANKS[1],
        **more,
    )


def texts(llm: Any) -> list[str]:
    """What grammars let through, greedy and seeded, beside requests without one."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = [
        SamplingParams(
            temperature=number % 2,
            seed=number,
            max_tokens=12,
            structured_outputs=StructuredOutputsParams(**grammar) if grammar else None,
        )
        for number, grammar in enumerate(2 * (*GRAMMARS, None))
    ]
    prompts = [{"prompt_token_ids": [number, 7, 9]} for number in range(len(params))]
    return [answer.outputs[0].text for answer in llm.generate(prompts, params, use_tqdm=False)]


def scores_of(answers: list[Any]) -> list[list[dict[int, float]]]:
    """Of each answer, for each place, the log probabilities by token."""
    return [
        [
            {token: entry.logprob for token, entry in place.items()}
            for place in answer.logprobs or ()
        ]
        for answer in answers
    ]


def plain(llm: Any) -> list[list[int]]:
    """Steps that may be one graph, of seven requests and then fewer."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=number % 3, seed=number, max_tokens=9 * number, ignore_eos=True)
        for number in range(1, 8)
    ]
    prompts = [{"prompt_token_ids": [number, 3]} for number in range(7)]
    made = llm.generate(prompts, params, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in made]


@dataclass(frozen=True)
class Answers:
    tokens: list[list[int]]
    combinations: list[list[int]]
    scores: list[list[dict[int, float]]]
    texts: list[str]
    plain: list[list[int]]

    @classmethod
    def of(cls, llm: Any) -> Answers:
        mixed, answers = tokens(llm), combinations(llm)
        made = [list(answer.token_ids) for answer in answers]
        return cls(mixed, made, scores_of(answers), texts(llm), plain(llm))


@pytest.fixture(scope="module")
def alone(tiny: Callable[[str, str], Path]) -> Answers:
    """One device's, eagerly."""
    with engine(tiny("llama", "float32"), enforce_eager=True, async_scheduling=False) as llm:
        made = Answers.of(llm)
    assert len({token for answer in made.tokens for token in answer}) > 100
    assert sum(len(places) for places in made.scores) > 20
    return made


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_two_ranks_give_the_tokens_of_one_device(
    tiny: Callable[[str, str], Path], alone: Answers, mode: str
) -> None:
    with sharded(tiny("llama", "float32"), enforce_eager=mode == "eager") as llm:
        made = Answers.of(llm)
        ranks = llm.collective_rpc("how_it_sampled")
    assert made.tokens == alone.tokens
    assert made.combinations == alone.combinations
    assert made.texts == alone.texts
    assert made.plain == alone.plain
    for number, (places, wanted) in enumerate(zip(made.scores, alone.scores, strict=True)):
        for place, wanted_place in zip(places, wanted, strict=True):
            assert place == pytest.approx(wanted_place, abs=1e-4), number
    assert [is_sharded for is_sharded, _ in ranks] == [True, True]
    one_graph = [steps > 40 for _, steps in ranks]  # of 63, where a graph has its share, too
    assert one_graph == [mode == "graph"] * 2


@pytest.mark.spec
def test_verified_drafts_are_those_of_one_device(tmp_path: Path) -> None:
    """Each rank verifies the drafts of its requests; a step may leave one of them without any."""
    wanted = speculation.plain_answers(tmp_path, REQUESTS)("eagle")
    with speculation.speculating(
        tmp_path,
        "eagle",
        3,
        tensor_parallel_size=2,
        enable_batch_sharded_sampling=True,
        worker_extension_cls=IN_RANKS[1],
    ) as llm:
        speculation.assert_equal(speculation.greedy(llm, REQUESTS), wanted)
        assert all(is_sharded for is_sharded, _ in llm.collective_rpc("how_it_sampled"))
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        assert 0 < accepted < speculation.metric(llm, "spec_decode_num_draft_tokens")
