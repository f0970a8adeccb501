# SPDX-License-Identifier: Apache-2.0
"""Random request churn with random acceptance: host lengths are the device's at every step and
every draft, nothing uncomputed is read, and no slot is written that is not the request's.

Acceptance is core's synthetic kind, so that it is as random for each method as for the others. The
driver is test_churn.py's; the KV cache is watched by kv_guard.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine import speculation
from tests.engine.in_process import engine
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
    config = speculation.speculative_config(
        folder,
        method,
        k,
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=list(RATES[:k]),
    )
    more: dict[str, Any] = {"max_num_seqs": 6, "num_gpu_blocks_override": 32}
    with engine(
        speculation.target(folder, method),
        speculative_config=config,
        async_scheduling=async_scheduling,
        enforce_eager=eager,
        **speculation.arguments(**more),
    ) as llm:
        worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        runner = worker.model_runner
        guard = KvGuard(runner)
        observer = Observer(runner)
        drafts = None if method == "ngram_gpu" else DraftObserver(runner.speculator)
        driver = Driver(llm.llm_engine, seed=seed, max_running=12)
        while observer.seen["steps"] < steps:
            driver.step()
        seen, counts = observer.seen, runner.seq_lens_log.counts
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        drafted = speculation.metric(llm, "spec_decode_num_draft_tokens")
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
def test_a_draft_model_s_lengths_and_slots(folder: Path) -> None:
    run(folder, "draft_model", k=3, steps=300, async_scheduling=True, eager=True, seed=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "k", "async_scheduling", "eager"),
    [
        ("eagle", 3, True, False),
        ("eagle", 5, False, True),
        ("draft_model", 5, False, False),
        ("ngram_gpu", 3, True, False),
        ("eagle3", 5, True, True),
        ("mtp", 5, True, False),
        ("mtp", 1, False, True),
    ],
)
def test_lengths_and_slots_of_every_method(
    folder: Path, method: str, k: int, async_scheduling: bool, eager: bool
) -> None:
    run(folder, method, k, steps=2000, async_scheduling=async_scheduling, eager=eager, seed=2)
