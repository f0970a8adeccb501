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

from vllm_ascend_mrv2.cli import counters

_LABEL = "decode"


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
    """One row of steps.json. host_us: median microseconds of the step thread per step."""

    mode: str
    batch: int
    layers: int
    steps: int
    host_us: float
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
    """Marks and times the decode steps of a runner while `is_counting`."""

    def __init__(self, runner: Any) -> None:
        self.is_counting = False
        self.host_us: list[float] = []
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        runner.execute_model, runner.sample_tokens = self._timed_execute, self._timed_sample

    def _timed_execute(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_counting:
            return self._execute(*args, **kwargs)
        counters.library().emu_step_begin(_LABEL.encode())
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


def measure(
    model: Path, mode: str, batch: int, steps: int, engine_arguments: dict[str, Any]
) -> Measurement:
    """Measure `steps` steady decode steps of `batch` requests on a new engine in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    warm_up, prompt_tokens = 8, 16
    llm = LLM(
        str(model),
        max_num_seqs=batch,
        max_model_len=512,
        gpu_memory_utilization=0.3,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **engine_arguments,
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
    counted = counters.snapshot()
    layers = llm.model_config.hf_text_config.num_hidden_layers
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    core.shutdown()
    return Measurement(
        mode=mode,
        batch=batch,
        layers=layers,
        steps=counted["steps"][_LABEL]["count"],
        host_us=float(np.median(timer.host_us)),
        per_step=_per_step(counted),
    )
