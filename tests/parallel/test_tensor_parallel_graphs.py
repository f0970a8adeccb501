# SPDX-License-Identifier: Apache-2.0
"""Two ranks with graphs, async scheduling and preemption under many seeds, and what a step costs.

The engine is in this process, its ranks are processes of their own; one engine serves all seeds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_graph_exactness import engine, tokens
from tests.parallel.layouts import BY_NAME

pytestmark = pytest.mark.timeout(1800)
# Of the adversarial scheduler, each with the 28 requests of the mixed load: 20 seeds, 560 requests.
SEEDS = range(1, int(os.environ.get("SEEDS", "20")) + 1)
STEADY_STEPS = 20


def set_seed(worker: Any, seed: int | None) -> None:
    """In a rank: delay its streams against each other by `seed`; None: not at all."""
    import torch

    from tests.helpers.emulated import acl

    torch.npu.synchronize()
    acl().emu_set_schedule_seed(seed or 0, int(seed is not None))


def mark_steps(worker: Any) -> None:
    """In a rank: count each step of the runner from here on by itself."""
    from tests.helpers.emulated import Step, reset_counters

    runner, numbers = worker.model_runner, itertools.count()
    execute, sample = runner.execute_model, runner.sample_tokens

    def marked_execute(*args: Any, **kwargs: Any) -> Any:
        runner.marked = Step(f"step {next(numbers)}")
        runner.marked.__enter__()
        return execute(*args, **kwargs)

    def marked_sample(*args: Any, **kwargs: Any) -> Any:
        output = sample(*args, **kwargs)
        runner.marked.__exit__(None, None, None)
        return output

    runner.execute_model, runner.sample_tokens = marked_execute, marked_sample
    reset_counters()


def step_counts(worker: Any) -> list[dict[str, int]]:
    """In a rank: what its steps cost, in order."""
    import torch

    from tests.helpers.emulated import counters

    torch.npu.synchronize()
    steps = counters()["steps"]
    made = []
    for number in range(len(steps)):
        mine = steps[f"step {number}"]["this_thread"]
        copied = mine["copies"]
        made.append(
            {
                "waits": mine["host_wait_count"],
                "replays": mine["graph_replays"],
                "h2d": sum(m["count"] for kind in copied["h2d"].values() for m in kind.values()),
                "d2h": sum(m["count"] for kind in copied["d2h"].values() for m in kind.values()),
            }
        )
    return made


@pytest.fixture(scope="module")
def two_ranks(tiny: Callable[[str, str], Path]) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # functions are sent to the ranks
        with engine(tiny("qwen3", "float32"), tensor_parallel_size=BY_NAME["tp2"].tensor) as llm:
            yield llm


def test_every_seed_gives_the_tokens_of_one_device(
    two_ranks: Any, tiny: Callable[[str, str], Path]
) -> None:
    with engine(tiny("qwen3", "float32"), enforce_eager=True, async_scheduling=False) as one:
        expected = tokens(one)
    assert two_ranks.llm_engine.vllm_config.scheduler_config.async_scheduling
    assert tokens(two_ranks) == expected
    for seed in SEEDS:
        two_ranks.collective_rpc(set_seed, args=(seed,))
        assert tokens(two_ranks) == expected, f"under scheduler seed {seed}"
    two_ranks.collective_rpc(set_seed, args=(None,))


def test_a_steady_step_waits_for_nothing_on_any_rank(two_ranks: Any) -> None:
    """The last of this engine's tests: its ranks stay marked."""
    from vllm import SamplingParams

    two_ranks.collective_rpc(mark_steps)
    asked = [{"prompt_token_ids": [5 + n, 9, 7]} for n in range(4)]
    params = SamplingParams(temperature=0, max_tokens=2 * STEADY_STEPS, ignore_eos=True)
    two_ranks.generate(asked, params, use_tqdm=False)
    for rank, steps in enumerate(two_ranks.collective_rpc(step_counts)):
        steady = steps[3 : 3 + STEADY_STEPS]
        assert len(steady) == STEADY_STEPS
        for step in steady:
            assert step["replays"] == 1, (rank, step)
            assert step["d2h"] == 0, (rank, step)  # the result is copied where it is awaited
            # A new block of 16 tokens is a blocking copy on a stream that has nothing else to do.
            assert step["h2d"] <= 1, (rank, step)
            assert step["waits"] == step["h2d"], (rank, step)
        assert sum(step["waits"] for step in steady) <= -(-STEADY_STEPS // 16), (rank, steady)
