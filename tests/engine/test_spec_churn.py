# SPDX-License-Identifier: Apache-2.0
"""Random request churn with random acceptance: host lengths are the device's at every step and
every draft, nothing uncomputed is read, and no slot is written that is not the request's.

Acceptance is core's synthetic kind, so that it is as random for each method as for the others. The
driver is test_churn.py's; the KV cache is watched by kv_guard.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine import speculation
from tests.engine.in_process import runner_of
from tests.engine.test_churn import Driver, Observer
from tests.helpers.kv_guard import KvGuard
from vllm_ascend_mrv2.runner.seq_lens import SeqLensAuthority

pytestmark = [pytest.mark.spec, pytest.mark.xdist_group("spec-churn")]

RATES = (0.8, 0.6, 0.5, 0.35, 0.2)


class DraftObserver:
    """Compares the host lengths of every draft forward with the drafter's on the device."""

    def __init__(self, speculator: Any) -> None:
        self.speculator = speculator
        self.forwards = 0
        self._build = speculator._build_attn_metadata
        speculator._build_attn_metadata = self.build

    def close(self) -> None:
        """Let go of the drafter: its weights are the device's until nobody has it."""
        del self.speculator._build_attn_metadata, self.speculator, self._build

    def build(self, num_reqs: int, **rest: Any) -> Any:
        made = self._build(num_reqs=num_reqs, **rest)
        host = self.speculator.host_seq_lens.require(num_reqs)
        device = self.speculator.input_buffers.seq_lens[:num_reqs].cpu().numpy()
        np.testing.assert_array_equal(host, device, err_msg=f"draft forward {self.forwards}")
        self.forwards += 1
        return made


def run(
    folder: Path, method: str, k: int, steps: int, async_scheduling: bool, eager: bool, seed: int
) -> None:
    acceptance = {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(RATES[:k]),
    }
    with speculation.speculating(
        folder,
        method,
        k,
        eager=eager,
        async_scheduling=async_scheduling,
        config=acceptance,
        max_num_seqs=6,
        num_gpu_blocks_override=32,
    ) as llm:
        runner = runner_of(llm)
        guard = KvGuard(runner, speculation.block_pool_of(llm))
        observer = Observer(runner)
        drafts = None if method == "ngram_gpu" else DraftObserver(runner.speculator)
        driver = Driver(llm.llm_engine, seed=seed, max_running=12)
        while observer.seen["steps"] < steps:
            driver.step()
        seen, counts = observer.seen, runner.seq_lens_log.counts
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        drafted = speculation.metric(llm, "spec_decode_num_draft_tokens")
        guard.close()
        if drafts is not None:
            drafts.close()
    print(method, dict(seen), f"{accepted:.0f} of {drafted:.0f} accepted, {guard.poisoned} slots")
    assert guard.steps >= steps - 1
    assert 0.2 < accepted / drafted < 0.9
    assert drafts is None or k == 1 or drafts.forwards > steps
    assert {verdict.authority for verdict in counts} == {SeqLensAuthority.DEVICE}
    for what in ("added", "finished", "preempted", "resumed", "prefill chunks", "mixed batches"):
        assert seen[what] >= 5, f"the run did not exercise '{what}': {dict(seen)}"
    assert driver.aborted >= 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.mark.long
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
def test_what_the_guard_finds_is_named_by_step_request_and_block(
    folder: Path, monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    """Lengths that are one too long, of the target and of its drafts: the guard is not blind."""
    blocks = {"num_gpu_blocks_override": 32}
    with speculation.speculating(folder, "eagle", 3, eager=eager, **blocks) as llm:
        runner = runner_of(llm)
        found: list[str] = []
        guard = KvGuard(runner, speculation.block_pool_of(llm), found)
        driver = Driver(llm.llm_engine, seed=3, max_running=4)
        drive(driver, 8)
        assert not found
        for owner, name, what in (
            (runner.speculator, "_lengths", "a draft"),
            (runner, "_decide_seq_lens", "a hidden state of the target"),
        ):
            exact = getattr(owner, name)
            with monkeypatch.context() as patch:
                patch.setattr(
                    owner, name, lambda *args, exact=exact, **more: exact(*args, **more) + 1
                )
                drive(driver, 4)
            whose = r"request r\d+.* up to token \d+, block \d+ slot \d+"
            pattern = rf"step \d+: {what} read what is not computed: {whose}"
            assert any(re.match(pattern, finding) for finding in found), found
        guard.close()


def drive(driver: Driver, steps: int) -> None:
    for _ in range(steps):
        driver.step()


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "k", "async_scheduling", "eager", "steps"),
    [
        ("eagle", 3, True, False, 2000),
        ("draft_model", 5, False, False, 2000),
        ("ngram_gpu", 3, True, False, 2000),
        ("eagle3", 5, True, True, 2000),
        ("mtp", 5, True, False, 2000),
        ("eagle", 5, False, True, 300),
        ("draft_model", 3, True, True, 300),
        ("mtp", 1, False, True, 300),
    ],
)
def test_lengths_and_slots_of_every_method(
    folder: Path, method: str, k: int, async_scheduling: bool, eager: bool, steps: int
) -> None:
    run(folder, method, k, steps, async_scheduling=async_scheduling, eager=eager, seed=2)
