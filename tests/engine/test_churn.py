# SPDX-License-Identifier: Apache-2.0
"""Random request churn: at every step the device's sequence lengths are the host's.

A seeded driver adds, aborts, finishes, preempts and resumes requests, with chunked prefill and
prefix caching, through the real scheduler. What it did is counted, so that a run that exercised
nothing fails.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.in_process import runner_of, shut_down
from vllm_ascend_mrv2.runner.model_runner import AscendModelRunner
from vllm_ascend_mrv2.runner.seq_lens import SeqLensAuthority

pytestmark = pytest.mark.xdist_group("churn")  # a worker each would start an engine more

VOCAB = 256


class Observer:
    """Compares, after each step's authority spoke, device lengths and host lengths."""

    def __init__(self, runner: AscendModelRunner) -> None:
        self.runner = runner
        self.seen: Counter[str] = Counter()
        self._decide = runner._decide_seq_lens
        self._prepare = runner.prepare_inputs
        self._finish = runner.finish_requests
        runner._decide_seq_lens = self.decide  # type: ignore[method-assign]
        runner.prepare_inputs = self.prepare  # type: ignore[method-assign]
        runner.finish_requests = self.finish  # type: ignore[method-assign]
        self._preempted: set[str] = set()

    def finish(self, scheduler_output: Any) -> None:
        preempted = scheduler_output.preempted_req_ids or set()
        added = {new.req_id for new in scheduler_output.scheduled_new_reqs}
        self.seen["preempted"] += len(preempted)
        self.seen["finished"] += len(scheduler_output.finished_req_ids)
        self.seen["added"] += len(added - self._preempted)
        self.seen["resumed"] += len(added & self._preempted)
        self._preempted = (self._preempted | preempted) - added
        self._finish(scheduler_output)

    def decide(self, rows: Any, num_scheduled: Any, **rest: Any) -> Any:
        """Every step, as one graph or not: what the device has computed, plus this step's."""
        host = self._decide(rows, num_scheduled=num_scheduled, **rest)
        computed = self.runner.req_states.num_computed_tokens.gpu.cpu().numpy()[rows]
        np.testing.assert_array_equal(
            host, computed + num_scheduled, err_msg=f"after {self.seen['steps']} steps"
        )
        self.seen["steps"] += 1
        return host

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Steps that core prepares: the lengths and positions that its kernels made."""
        batch = self._prepare(*args, **kwargs)
        n = batch.num_reqs
        device = batch.seq_lens[:n].cpu().numpy()
        host = self.runner.host_seq_lens.require(n)
        np.testing.assert_array_equal(host, device, err_msg=f"after {self.seen['steps']} steps")
        # Positions are what KV is written at: the last token of each request is its length - 1.
        last = batch.positions.cpu().numpy()[batch.query_start_loc_np[1 : n + 1] - 1]
        np.testing.assert_array_equal(last, device - 1)
        is_prefill = batch.is_prefilling_np[:n]
        unfinished = host < batch.prefill_len_np[:n]
        self.seen["prefill chunks"] += int((is_prefill & unfinished).sum())
        self.seen["mixed batches"] += bool(is_prefill.any() and not is_prefill.all())
        return batch


class Driver:
    """Adds and aborts requests at random around the engine's steps."""

    def __init__(self, engine: Any, seed: int, max_running: int) -> None:
        self.engine, self.rng, self.max_running = engine, random.Random(seed), max_running
        self.live: list[str] = []
        self.count = 0
        self.aborted = 0
        self.shared = [self.rng.randrange(VOCAB) for _ in range(48)]

    def step(self) -> None:
        from vllm import SamplingParams

        rng = self.rng
        while len(self.live) < self.max_running and rng.random() < 0.4:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 15, 16, 17, 60, 150]))]
            if rng.random() < 0.3:
                prompt = self.shared + prompt
            params = SamplingParams(
                temperature=rng.choice([0.0, 0.8]),
                seed=rng.randrange(1 << 30),
                max_tokens=rng.choice([1, 2, 8, 40, 90]),
                ignore_eos=True,
                detokenize=False,
            )
            request_id = f"r{self.count}"
            self.engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
            self.live.append(request_id)
            self.count += 1
        if self.live and rng.random() < 0.03:
            request_id = self.live.pop(rng.randrange(len(self.live)))
            self.engine.abort_request([request_id])
            self.aborted += 1
        for output in self.engine.step():
            if output.finished and output.request_id in self.live:
                self.live.remove(output.request_id)


@pytest.mark.parametrize(
    ("authority", "async_scheduling", "steps"),
    [
        ("auto", True, 2000),
        pytest.param("auto", False, 2000, marks=pytest.mark.long),
        ("device", True, 400),
    ],
)
def test_device_and_host_lengths_agree_at_every_step(
    tiny: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    authority: str,
    async_scheduling: bool,
    steps: int,
) -> None:
    from vllm import LLM

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_ASCEND_MRV2_SEQ_LENS", authority)
    llm = LLM(
        str(tiny("qwen3", "float32")),
        dtype="float32",
        max_model_len=320,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        block_size=16,
        num_gpu_blocks_override=36,
        gpu_memory_utilization=0.1,
        enable_prefix_caching=True,
        async_scheduling=async_scheduling,
        disable_log_stats=True,
    )
    runner = runner_of(llm)
    observer = Observer(runner)
    driver = Driver(llm.llm_engine, seed=1, max_running=12)
    while observer.seen["steps"] < steps:
        driver.step()
    seen = dict(observer.seen)
    print(seen, "aborted", driver.aborted, dict(runner.seq_lens_log.counts))
    for what in ("added", "finished", "preempted", "resumed", "prefill chunks", "mixed batches"):
        assert observer.seen[what] >= 5, f"the run did not exercise '{what}': {seen}"
    assert driver.aborted >= 5
    used = {verdict.authority for verdict in runner.seq_lens_log.counts}
    expected = SeqLensAuthority.DEVICE if authority == "device" else SeqLensAuthority.SCHEDULER
    assert used == {expected}
    shut_down(llm)
