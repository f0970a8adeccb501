# SPDX-License-Identifier: Apache-2.0
"""Speculation on two tensor-parallel ranks: the tokens of one device without it, and no hang.

Graphs, async scheduling and a KV cache in which requests are preempted. The engine is in this
process, its ranks are processes of their own; one engine serves all seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine import speculation
from tests.parallel.layouts import IN_RANKS

pytestmark = [pytest.mark.spec, pytest.mark.timeout(3600)]
# Of the adversarial scheduler: 20 seeds of 25 requests, 500 requests.
SEEDS = range(1, int(os.environ.get("SEEDS", "20")) + 1)
REQUESTS = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def expected(folder: Path) -> Callable[[str], Any]:
    """Method -> what one device says eagerly and without drafts."""
    return speculation.plain_answers(folder, REQUESTS)


@pytest.mark.parametrize(
    ("method", "k", "seeds"),
    [
        ("mtp", 5, SEEDS),
        ("eagle", 3, SEEDS[:2]),
        ("eagle3", 3, SEEDS[:1]),
        ("draft_model", 3, SEEDS[:1]),
        ("ngram_gpu", 3, SEEDS[:1]),
    ],
    ids=lambda value: f"{len(value)}-seeds" if isinstance(value, range) else str(value),
)
def test_two_ranks_give_the_tokens_of_one_device(
    folder: Path,
    expected: Callable[[str], Any],
    method: str,
    k: int,
    seeds: range,
) -> None:
    wanted = expected(method)
    with speculation.speculating(
        folder, method, k, tensor_parallel_size=2, worker_extension_cls=IN_RANKS[1]
    ) as llm:
        config = llm.llm_engine.vllm_config
        assert config.scheduler_config.async_scheduling
        assert config.compilation_config.cudagraph_mode.name == "FULL_DECODE_ONLY"
        for seed in (None, *seeds):
            llm.collective_rpc("set_schedule_seed", args=(seed,))
            speculation.assert_equal(speculation.greedy(llm, REQUESTS), wanted, f"seed {seed}")
        drafted = speculation.metric(llm, "spec_decode_num_draft_tokens")
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        preempted = speculation.metric(llm, "num_preemptions")
    print(f"{method}: {accepted:.0f} of {drafted:.0f} accepted, {preempted:.0f} preempted")
    assert 0 < accepted < drafted
    assert preempted > 0, "no request was preempted"
