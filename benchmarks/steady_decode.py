# SPDX-License-Identifier: Apache-2.0
"""A steady decode step, counted: copies, host waits, launches, and host time on the step thread.

One engine in this process, a batch that neither grows nor shrinks, greedy. Steps are counted only
while the whole batch decodes. Host time is that of execute_model and sample_tokens, which the step
thread spends per step; it includes waits for the device where the step makes them.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.cli import counters

_LABEL = "decode"

# Phase -> the runner's methods whose time it is; `rest` is what no phase has. In an eager step only
# the rule and the output are apart.
_RUNNER_PHASES = {
    "rule": ("_step_facts",),
    "bookkeeping": (
        *("finish_requests", "free_states", "add_requests", "update_requests"),
        "_decide_seq_lens",
    ),
    "output": ("sample_tokens",),
}
PHASES = ("rule", "bookkeeping", "replay", "updates", "output", "rest")


@dataclass(frozen=True)
class Mode:
    """A way to run: arguments of the engine, and whether the compiled hot path is taken."""

    name: str
    engine_arguments: dict[str, Any]
    has_hot_path: bool


@dataclass(frozen=True)
class PerStep:
    """Averages over the counted steps, of all threads but for the waits.

    h2d, d2h: copies of any kind, results included; step_thread_waits: waits for the device by the
    thread that prepares steps, inside execute_model and sample_tokens; launches: operators outside
    graphs.
    """

    h2d: float
    d2h: float
    step_thread_waits: float
    launches: float
    graph_replays: float
    task_updates: float


@dataclass(frozen=True)
class Measurement:
    """One row of steps.json. host_us: median microseconds of the step thread per step.

    phases_us: medians of its parts by PHASES; they need not add up.
    """

    mode: str
    batch: int
    layers: int
    steps: int
    host_us: float
    phases_us: dict[str, float]
    per_step: PerStep

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _copies(counted: dict[str, Any], direction: str) -> int:
    return sum(
        kind["count"] for mode in counted["copies"][direction].values() for kind in mode.values()
    )


def _per_step(counted: dict[str, Any]) -> PerStep:
    marked, total = counted["steps"][_LABEL], counted["total"]
    steps = marked["count"]
    return PerStep(
        h2d=_copies(total, "h2d") / steps,
        d2h=_copies(total, "d2h") / steps,
        step_thread_waits=marked["this_thread"]["host_wait_count"] / steps,
        launches=total["launch_count"] / steps,
        graph_replays=total["graph_replays"] / steps,
        task_updates=total["task_updates"] / steps,
    )


class _StepTimer:
    """Marks and times the decode steps of a runner, whole and by phase, while `is_counting`."""

    def __init__(self, runner: Any) -> None:
        self.is_counting = False
        self.host_us: list[float] = []
        self._phases: list[dict[str, float]] = []
        for phase, methods in _RUNNER_PHASES.items():
            for method in methods:
                self._time(runner, method, phase)
        self._time(runner.replay_protocol.updater, "submit", "updates")
        if runner.step_graphs is not None:
            for captured in runner.step_graphs.captured:
                self._time(captured.graph, "replay", "replay")
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        runner.execute_model, runner.sample_tokens = self._timed_execute, self._timed_sample

    def _time(self, owner: Any, method: str, phase: str) -> None:
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.is_counting:
                return original(*args, **kwargs)
            start = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                step = self._phases[-1]
                step[phase] = step.get(phase, 0.0) + (time.perf_counter_ns() - start) / 1e3

        setattr(owner, method, timed)

    def phases_us(self) -> dict[str, float]:
        """Medians over the steps, by PHASES."""
        for step, host_us in zip(self._phases, self.host_us, strict=True):
            step["rest"] = host_us - sum(step.values())
        return {
            phase: float(np.median([step.get(phase, 0.0) for step in self._phases]))
            for phase in PHASES
        }

    def _timed_execute(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_counting:
            return self._execute(*args, **kwargs)
        counters.library().emu_step_begin(_LABEL.encode())
        self._phases.append({})
        start = time.perf_counter_ns()
        try:
            return self._execute(*args, **kwargs)
        finally:
            self.host_us.append((time.perf_counter_ns() - start) / 1e3)

    def _timed_sample(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_counting:
            return self._sample(*args, **kwargs)
        start = time.perf_counter_ns()
        try:
            return self._sample(*args, **kwargs)
        finally:
            self.host_us[-1] += (time.perf_counter_ns() - start) / 1e3
            counters.library().emu_step_end()


def measure(model: Path, mode: Mode, batch: int, steps: int) -> Measurement:
    """Measure `steps` steady decode steps of `batch` requests on a new engine in this process.

    Raises RuntimeError where the mode wants the hot path and it is not built.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ[envs.HOTPATH.name] = "auto" if mode.has_hot_path else "off"
    from vllm import LLM, SamplingParams

    from vllm_ascend_mrv2.graph import updates

    if mode.has_hot_path and updates.verdict().library is None:
        raise RuntimeError(f"{mode.name}: {updates.verdict().reason}")

    warm_up, prompt_tokens = 8, 16
    llm = LLM(
        str(model),
        dtype="float32",
        max_num_seqs=batch,
        max_model_len=512,
        gpu_memory_utilization=0.3,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **mode.engine_arguments,
    )
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    timer = _StepTimer(runner)
    params = SamplingParams(
        temperature=0.0, max_tokens=2 * warm_up + steps, ignore_eos=True, detokenize=False
    )
    for request in range(batch):
        prompt = {"prompt_token_ids": [(7 * request + i) % 200 for i in range(prompt_tokens)]}
        llm.llm_engine.add_request(str(request), prompt, params)
    for _ in range(warm_up + 1):
        llm.llm_engine.step()
    counters.reset()
    timer.is_counting = True
    for _ in range(steps):
        llm.llm_engine.step()
    timer.is_counting = False
    runner.replay_protocol.close_window("the end of the count")
    counted = counters.snapshot()
    layers = llm.model_config.hf_text_config.num_hidden_layers
    # Not drained: without arithmetic a request may never count a token, and so never end.
    llm.llm_engine.abort_request([str(request) for request in range(batch)])
    core.shutdown()
    return Measurement(
        mode=mode.name,
        batch=batch,
        layers=layers,
        steps=counted["steps"][_LABEL]["count"],
        host_us=float(np.median(timer.host_us)),
        phases_us=timer.phases_us(),
        per_step=_per_step(counted),
    )
