# SPDX-License-Identifier: Apache-2.0
"""What the exact path of speculation costs: one copy from the device and one wait for it a step.

Nothing is sent in a step whose batch is the last one's. A new block is sent by one copy, which
blocks on a stream that has nothing else to do, and counts as a wait.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import speculation
from tests.engine.in_process import runner_of
from tests.engine.test_step_counts import Marker, StepCounts

pytestmark = [pytest.mark.spec, pytest.mark.long, pytest.mark.xdist_group("spec-counts")]


BATCH = 8
STEPS = 12
# No request needs a second block of 128 tokens in these steps; of 16 tokens some do in most steps.
BLOCKS = {128: 16, 16: 160}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("method", speculation.METHODS)
def test_a_steady_step_reads_once_and_waits_once(tmp_path: Path, method: str, eager: bool) -> None:
    made = counts(tmp_path, method, eager, block_size=128)
    assert {(counted.d2h, counted.h2d, counted.waits) for counted in made} == {(1, 0, 1)}, made


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("method", [name for name in speculation.METHODS if name != "draft_model"])
def test_a_steady_step_with_masked_lengths_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, eager: bool
) -> None:
    monkeypatch.setenv("VLLM_ASCEND_MRV2_SPEC_LENGTHS", "masked")
    made = counts(tmp_path, method, eager, block_size=128)
    assert {(counted.d2h, counted.h2d, counted.waits) for counted in made} == {(0, 0, 0)}, made


def test_a_step_with_a_new_block_sends_it_by_one_copy(tmp_path: Path) -> None:
    made = counts(tmp_path, "eagle", eager=False, block_size=16)
    assert {counted.d2h for counted in made} == {1}, made
    assert {counted.h2d for counted in made} == {0, 1}, made
    assert all(counted.waits == 1 + counted.h2d for counted in made), made


def counts(folder: Path, method: str, eager: bool, block_size: int) -> list[StepCounts]:
    """Of steps in which a full batch decodes, and nothing starts or ends."""
    from vllm import SamplingParams

    with speculation.speculating(
        folder,
        method,
        k=3,
        eager=eager,
        max_num_seqs=BATCH,
        block_size=block_size,
        num_gpu_blocks_override=BLOCKS[block_size],
    ) as llm:
        for number in range(BATCH):
            llm.llm_engine.add_request(
                f"r{number}",
                {"prompt_token_ids": [(7 * number + i) % 200 for i in range(9)]},
                SamplingParams(temperature=0.0, max_tokens=110, ignore_eos=True, detokenize=False),
            )
        for _ in range(6):
            llm.llm_engine.step()
        with Marker(runner_of(llm), hold=False) as marker:
            for _ in range(STEPS):
                llm.llm_engine.step()
            made = marker.counts()
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
    print(method, made[2])
    assert len(made) >= STEPS - 2
    return made
