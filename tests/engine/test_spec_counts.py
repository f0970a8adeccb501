# SPDX-License-Identifier: Apache-2.0
"""What the exact path of speculation costs: one copy from the device and one wait for it a step.

What a step sends is one staged copy; blocking on the idle input stream, it counts as a wait too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine import speculation
from tests.engine.in_process import engine
from tests.engine.test_step_counts import Marker

pytestmark = [pytest.mark.spec, pytest.mark.long, pytest.mark.xdist_group("spec-counts")]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("method", speculation.METHODS)
def test_a_steady_step_reads_once_and_waits_once(tmp_path: Path, method: str, eager: bool) -> None:
    from vllm import SamplingParams

    config = speculation.speculative_config(tmp_path, method, 3)
    more: dict[str, Any] = {"max_num_seqs": 8, "num_gpu_blocks_override": 160}
    with engine(
        speculation.target(tmp_path, method),
        speculative_config=config,
        enforce_eager=eager,
        **speculation.arguments(**more),
    ) as llm:
        for number in range(8):
            llm.llm_engine.add_request(
                f"r{number}",
                {"prompt_token_ids": [(7 * number + i) % 200 for i in range(9)]},
                SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, detokenize=False),
            )
        for _ in range(6):
            llm.llm_engine.step()
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        with Marker(runner.model_runner, hold=False) as marker:
            for _ in range(12):
                llm.llm_engine.step()
            made = marker.counts()
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
    print(method, made[2])
    assert len(made) >= 10
    assert {counted.d2h for counted in made} == {1}, made
    assert max(counted.h2d for counted in made) <= 1, made
    assert all(counted.waits == counted.d2h + counted.h2d for counted in made), made
