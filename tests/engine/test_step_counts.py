# SPDX-License-Identifier: Apache-2.0
"""What a step copies, waits for and launches: exact counts from the device, and a held device.

The engine is in this process. Each step that the runner makes is marked by a label of its own, so
that every count is per step and not an average. Waits for the compute stream are found by holding
that stream on the device while the step thread works: a step that waited would not return.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.in_process import core_of, runner_of, shut_down
from tests.helpers.core_version import core_is_before
from tests.helpers.emulated import Gate, Step, counters, reset_counters
from vllm_ascend_mrv2.cli.models import tiny as tiny_model

LAYERS = 24
BATCHES = (1, 8, 32)
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("step-counts")]


@dataclass(frozen=True)
class StepCounts:
    """Counts between the begin of execute_model and the end of sample_tokens."""

    h2d: int
    d2h: int
    waits: int  # of the step thread
    graph_replays: int
    task_updates: int
    launches: int


def _copies(counted: dict[str, Any], direction: str) -> int:
    return sum(
        memory["count"]
        for kind in counted["copies"][direction].values()
        for memory in kind.values()
    )


class Marker:
    """Marks every step of the runner; with `hold`, keeps the compute stream from running in it."""

    def __init__(self, runner: Any, hold: bool) -> None:
        self.gate = Gate()
        self.hold = hold
        self.numbers = itertools.count()
        self.labels: list[str] = []
        self.runner = runner
        self._execute, self._sample = runner.execute_model, runner.sample_tokens

    def __enter__(self) -> Marker:
        self.gate.__enter__()
        self.runner.execute_model, self.runner.sample_tokens = self.execute, self.sample
        reset_counters()
        return self

    def execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self.labels.append(f"step {next(self.numbers)}")
        if self.hold:
            self.gate.close()
        self._step = Step(self.labels[-1])
        self._step.__enter__()
        return self._execute(scheduler_output, *args, **kwargs)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        output = self._sample(*args, **kwargs)
        self._step.__exit__(None, None, None)
        if self.hold:
            self.gate.open()
        return output

    def __exit__(self, *error: Any) -> None:
        self.runner.execute_model, self.runner.sample_tokens = self._execute, self._sample
        self.gate.__exit__(*error)

    def counts(self) -> list[StepCounts]:
        steps = counters()["steps"]
        made = []
        for label in self.labels:
            mine, others = steps[label]["this_thread"], steps[label]["other_threads"]
            made.append(
                StepCounts(
                    h2d=_copies(mine, "h2d") + _copies(others, "h2d"),
                    d2h=_copies(mine, "d2h") + _copies(others, "d2h"),
                    waits=mine["host_wait_count"],
                    graph_replays=mine["graph_replays"] + others["graph_replays"],
                    task_updates=mine["task_updates"] + others["task_updates"],
                    launches=mine["launch_count"] + others["launch_count"],
                )
            )
        return made


class Engine:
    """An engine in this process and its runner."""

    def __init__(self, checkpoint: Path) -> None:
        from vllm import LLM

        self.llm = LLM(
            str(checkpoint),
            dtype="float32",
            max_num_seqs=max(BATCHES),
            max_model_len=512,
            gpu_memory_utilization=0.2,
            num_gpu_blocks_override=4 * max(BATCHES),
            enable_prefix_caching=False,
            disable_log_stats=True,
            compilation_config={"cudagraph_capture_sizes": list(BATCHES)},
        )
        self.core = core_of(self.llm)
        self.runner = runner_of(self.llm)
        self.numbers = itertools.count()

    def add(self, prompt_tokens: int, max_tokens: int, **sampling: Any) -> None:
        from vllm import SamplingParams

        number = next(self.numbers)
        prompt = {"prompt_token_ids": [(7 * number + i) % 200 for i in range(prompt_tokens)]}
        params = SamplingParams(
            **{"temperature": 0.0, **sampling},
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        self.llm.llm_engine.add_request(f"r{number}", prompt, params)

    def step(self) -> None:
        self.llm.llm_engine.step()

    def drain(self) -> None:
        while self.llm.llm_engine.has_unfinished_requests():
            self.step()
        torch.npu.synchronize()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        checkpoint = tmp_path_factory.mktemp("counts") / "qwen3"
        tiny_model.write(
            checkpoint, tiny_model.Shape(layers=LAYERS), seed=0, dtype="float32", force=False
        )
        made = Engine(checkpoint)
        yield made
        shut_down(made.llm)


def steady(
    engine: Engine, batch: int, steps: int, hold: bool, **sampling: Any
) -> tuple[list[StepCounts], dict]:
    """Counts of `steps` steps in which `batch` requests decode and nothing else happens."""
    warm_up = 6
    for _ in range(batch):
        engine.add(prompt_tokens=5, max_tokens=steps + 2 * warm_up, **sampling)
    for _ in range(warm_up):
        engine.step()
    torch.npu.synchronize()
    with Marker(engine.runner, hold) as marker:
        for _ in range(steps):
            engine.step()
        torch.npu.synchronize()
        made, total = marker.counts(), counters()["total"]
    engine.drain()
    return made, total


@pytest.mark.parametrize("batch", BATCHES)
def test_a_steady_step_is_one_replay(engine: Engine, batch: int) -> None:
    made, total = steady(engine, batch, steps=20, hold=False)
    assert len(made) == 20
    for counted in made:
        assert (counted.h2d, counted.d2h, counted.waits) == (0, 0, 0)
    # Launches and updates may be made by another thread, hence a little later.
    assert total["graph_replays"] == len(made)
    assert total["task_updates"] == LAYERS * len(made)
    assert total["launch_count"] <= 4 * len(made)
    assert _copies(total, "h2d") == 0
    assert _copies(total, "d2h") == len(made)  # the output side: one for each step


@pytest.mark.parametrize("batch", BATCHES)
def test_a_steady_step_waits_for_nothing(engine: Engine, batch: int) -> None:
    made, _ = steady(engine, batch, steps=6, hold=True)
    assert len(made) == 6


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 5},
    "filtered": {"temperature": 0.9, "seed": 5, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
    "logit_bias": {"logit_bias": {3: 2.0, 9: -1.0}, "min_tokens": 2, "stop_token_ids": [4]},
    "allowed": {"allowed_token_ids": [5, 6, 7, 8]},
    "logprobs": {"logprobs": 5},
}


def made_by(engine: Engine, **sampling: Any) -> tuple[int, int, int]:
    """Launches and copies to and from the device of six steps of four requests, log probability 0.

    That one takes a step out of its graph, so that core's sampler runs with all its features.
    """
    _, total = steady(engine, batch=4, steps=6, hold=False, **{"logprobs": 0, **sampling})
    return total["launch_count"], _copies(total, "h2d"), _copies(total, "d2h")


# Of the steps of `made_by` on the reference core: launches, copies to the device and from it.
PLAIN = (6 * 79, 6, 6 * 5)
COSTS: dict[str, dict[str, Any]] = {
    "seeds": {"temperature": 1.0, "seed": 5},
    "temperature": {"temperature": 0.9, "seed": 5},
    "top_k": {"temperature": 1.0, "seed": 5, "top_k": 20},
    "top_p": {"temperature": 1.0, "seed": 5, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "seed": 5, "min_p": 0.01},
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.5},
    "frequency": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {3: 2.0}},
    "allowed": {"allowed_token_ids": [5, 6, 7, 8]},
    "min_tokens": {"min_tokens": 17, "stop_token_ids": [4]},
    "bad_words": {"bad_words": ["a", "bc"]},
    "logprob_token_ids": {"logprobs": 2, "logprob_token_ids": [4, 8]},
}


def test_a_feature_costs_nothing_where_no_request_uses_it(engine: Engine) -> None:
    """Before and after each feature was used, a batch without it makes the same, exactly."""
    plain = made_by(engine)
    if not core_is_before("0.32") and core_is_before("0.33"):
        assert all(made <= known for made, known in zip(plain, PLAIN, strict=True)), (
            "every step makes more than it did"
        )
    for name, asked in COSTS.items():
        assert made_by(engine, **asked)[0] > plain[0], f"{name}: not seen by this test"
        assert made_by(engine) == plain, f"{name} is still paid for"
    made, total = steady(engine, batch=4, steps=10, hold=False)
    assert total["graph_replays"] == len(made)
    assert (_copies(total, "h2d"), _copies(total, "d2h")) == (0, len(made))


@pytest.mark.parametrize("sampling", SAMPLING)
def test_arrivals_and_finishes_cost_one_copy_each(engine: Engine, sampling: str) -> None:
    """Every step one request starts and one ends; the device is held while the step is made."""
    params = SAMPLING[sampling]
    for _ in range(6):
        engine.add(prompt_tokens=5, max_tokens=6, **params)
        engine.step()
    torch.npu.synchronize()
    with Marker(engine.runner, hold=True) as marker:
        for _ in range(15):
            engine.add(prompt_tokens=30, max_tokens=6, **params)
            engine.step()
        torch.npu.synchronize()
        made = marker.counts()
    engine.drain()
    assert len(made) >= 15
    assert max(counted.h2d for counted in made) <= 2, made
    assert max(counted.d2h for counted in made) == 0, made


def test_a_request_with_penalties_counts_its_own_prompt(engine: Engine) -> None:
    """Its tokens are staged in the step that counts them."""
    prompt = [7, 7, 11, 1, 150]
    for number in range(3):
        engine.llm.llm_engine.add_request(
            f"penalties-{number}",
            {"prompt_token_ids": prompt[number:]},
            _penalties(max_tokens=4),
        )
    while engine.llm.llm_engine.has_unfinished_requests():
        engine.step()
        states, sampler = engine.runner.req_states, engine.runner.sampler
        for req_id, row in states.req_id_to_index.items():
            if not req_id.startswith("penalties-"):
                continue
            words = sampler.penalties_state.prompt_bin_mask[row].cpu().numpy().view(np.uint32)
            seen = {32 * w + b for w in range(len(words)) for b in range(32) if words[w] >> b & 1}
            assert seen == set(prompt[int(req_id.split("-")[1][0]) :]), req_id


def _penalties(max_tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0.0, repetition_penalty=1.5, max_tokens=max_tokens, ignore_eos=True
    )


def test_the_device_authority_costs_one_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, _ = steady(engine, batch=8, steps=10, hold=False)
    monkeypatch.setattr(engine.runner, "_seq_lens_from_device", True)
    device, _ = steady(engine, batch=8, steps=10, hold=False)
    for mirror, read in zip(scheduler, device, strict=True):
        assert read.d2h == mirror.d2h + 1
        assert read.waits == mirror.waits + 1
        assert read.h2d == mirror.h2d == 0
