# SPDX-License-Identifier: Apache-2.0
"""Graphs give the eager tokens, however independent streams are delayed against each other.

One mixed load (chunked prefill, prefix hits, preemption, batches that grow and shrink, greedy and
seeded requests, some that leave the graph's rule) is run eagerly, and then with graphs under many
seeds of the adversarial scheduler. Tokens must be equal, all of them. So must those of forty
combinations of parameters, which are also held against core's own kernels on the CPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.core_semantics import assert_core_s
from tests.engine.in_process import adversarial, engine, runner_of
from tests.helpers.combinations import COMBINATIONS, sampling_params
from tests.helpers.core_oracle import CoreOracle
from tests.helpers.emulated import counters, reset_counters
from tests.helpers.kernel_fixtures import oracle  # noqa: F401
from vllm_ascend_mrv2.kernels.sample.sampler import samples_plainly

pytestmark = pytest.mark.xdist_group("graph-exactness")

VOCAB = 256
SEEDS = {"short": (1,), "long": tuple(range(2, 21))}


def load() -> tuple[list[dict[str, list[int]]], list[Any]]:
    """Prompts and parameters of the mixed load; the same each time."""
    from vllm import SamplingParams

    rng = random.Random(11)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    prompts, params = [], []
    for number in range(28):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 3, 16, 17, 70, 130]))]
        prompts.append({"prompt_token_ids": shared + prompt if number % 3 == 0 else prompt})
        # Two of fourteen leave the step graph's rule; their batches replay the forward's graph.
        extra: dict[str, Any] = {5: {"top_k": 20}, 10: {"presence_penalty": 0.4}}.get(
            number % 14, {}
        )
        params.append(
            SamplingParams(
                temperature=0.0 if number % 2 else 0.8,
                seed=number,
                max_tokens=rng.choice([2, 9, 30, 60]),
                ignore_eos=True,
                detokenize=False,
                **extra,
            )
        )
    return prompts, params


def tokens(llm: Any) -> list[list[int]]:
    prompts, params = load()
    llm.reset_prefix_cache()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


PLAIN = [
    number
    for number, asked in enumerate(COMBINATIONS)
    if samples_plainly(sampling_params(asked, max_tokens=9, ignore_eos=True, detokenize=False))
]


def combination_prompts() -> list[list[int]]:
    rng = random.Random(12)
    lengths = (1, 5, 16, 40, 130)
    return [
        [rng.randrange(VOCAB) for _ in range(lengths[number % len(lengths)])]
        for number in range(len(COMBINATIONS))
    ]


def combinations(llm: Any, chosen: Sequence[int] = range(len(COMBINATIONS))) -> list[Any]:
    """Answers to the forty combinations, in batches as the scheduler mixes them."""
    prompts = combination_prompts()
    outputs = llm.generate(
        [{"prompt_token_ids": prompts[number]} for number in chosen],
        [
            sampling_params(
                COMBINATIONS[number], max_tokens=4 + number % 6, ignore_eos=True, detokenize=False
            )
            for number in chosen
        ],
        use_tqdm=False,
    )
    return [output.outputs[0] for output in outputs]


def combination_tokens(llm: Any) -> list[list[int]]:
    """Those that may be one graph also on their own, so that their batches are one."""
    made = [list(answer.token_ids) for answer in combinations(llm)]
    alone = [list(answer.token_ids) for answer in combinations(llm, PLAIN)]
    assert alone == [made[number] for number in PLAIN]
    return made


@dataclass(frozen=True)
class Eager:
    """What the engine says without graphs and async scheduling: tokens, and whole answers."""

    tokens: list[list[int]]
    answers: list[Any]

    @property
    def combination_tokens(self) -> list[list[int]]:
        return [list(answer.token_ids) for answer in self.answers]


@pytest.fixture(scope="module")
def eager(tiny: Callable[[str, str], Path]) -> Eager:
    with engine(tiny("qwen3", "float32"), enforce_eager=True, async_scheduling=False) as llm:
        made = Eager(tokens(llm), combinations(llm))
    distinct = {token for answer in made.tokens for token in answer}
    assert len(distinct) > 100, "the model hardly varies"
    return made


@pytest.fixture(scope="module")
def expected(eager: Eager) -> list[list[int]]:
    """The eager tokens of the mixed load."""
    return eager.tokens


def test_forty_combinations_give_the_tokens_of_core_s_kernels(
    tiny: Callable[[str, str], Path],
    eager: Eager,
    oracle: CoreOracle,  # noqa: F811
) -> None:
    checkpoint = tiny("qwen3", "float32")
    assert_core_s(oracle, checkpoint, combination_prompts(), COMBINATIONS, eager.answers)


@pytest.mark.parametrize(
    ("form", "async_scheduling"),
    [
        pytest.param("short", True, id="short-async"),
        pytest.param("long", True, id="long-async", marks=pytest.mark.long),
        pytest.param("long", False, id="long-sync", marks=pytest.mark.long),
    ],
)
def test_graphs_give_the_eager_tokens(
    tiny: Callable[[str, str], Path],
    eager: Eager,
    expected: list[list[int]],
    form: str,
    async_scheduling: bool,
) -> None:
    with engine(tiny("qwen3", "float32"), async_scheduling=async_scheduling) as llm:
        log = runner_of(llm).step_log
        reset_counters()
        assert tokens(llm) == expected
        for seed in SEEDS[form]:
            with adversarial(seed):
                made = tokens(llm)
                combined = combination_tokens(llm)
            assert made == expected, f"under scheduler seed {seed}"
            assert combined == eager.combination_tokens, f"under scheduler seed {seed}"
        replays = counters()["total"]["graph_replays"]
        steps = sum(count for verdict, count in log.counts.items() if verdict.sampling)
        print({verdict.reason: count for verdict, count in log.counts.items()}, replays)
    assert steps > 50, "the step graph hardly ran"
    assert replays - steps > 20, "the forward's graph hardly ran"


def test_more_rows_of_padding_than_a_block_has_slots(
    tiny: Callable[[str, str], Path], expected: list[list[int]]
) -> None:
    sizes = {"cudagraph_capture_sizes": [200]}
    arguments: dict[str, Any] = {"max_num_seqs": 200, "max_num_batched_tokens": 200}
    with engine(tiny("qwen3", "float32"), compilation_config=sizes, **arguments) as llm:
        assert tokens(llm) == expected
        verdicts = runner_of(llm).step_log.counts
        assert sum(count for verdict, count in verdicts.items() if verdict.sampling) > 20


@pytest.mark.long
def test_inputs_copied_when_read_give_the_same_tokens(
    tiny: Callable[[str, str], Path], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ASCEND_MRV2_INPUT_COPY", "read")
    with engine(tiny("qwen3", "float32"), async_scheduling=False) as llm, adversarial(5):
        assert tokens(llm) == expected


def test_reads_from_the_device_give_the_same_tokens(
    tiny: Callable[[str, str], Path], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ASCEND_MRV2_SEQ_LENS", "device")
    # Without async scheduling: the short form of the tests above has it.
    with engine(tiny("qwen3", "float32"), async_scheduling=False) as llm, adversarial(5):
        assert tokens(llm) == expected
