# SPDX-License-Identifier: Apache-2.0
"""Speculation does not change an answer: greedy tokens with it are those without it, in float32.

One mixed load: batches of 1 to 16, chunked prefill, prefix caching, preemption, and what stands on
top of greedy sampling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine import speculation
from tests.engine.in_process import engine
from tests.helpers.emulated import counters, reset_counters

pytestmark = [pytest.mark.spec, pytest.mark.long, pytest.mark.xdist_group("spec-exactness")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    """Method -> the load's answers without speculation, made once for each target."""
    known: dict[Path, Any] = {}

    def answers(method: str) -> Any:
        target = speculation.target(folder, method)
        if target not in known:
            with engine(target, enforce_eager=True, **speculation.arguments()) as llm:
                known[target] = speculation.greedy(llm)
            tokens = [token for answer, _ in known[target] for token in answer]
            assert len(set(tokens)) > 60, "the model hardly varies"
        return known[target]

    return answers


def check(
    folder: Path, expected: Any, method: str, k: int, async_scheduling: bool, eager: bool
) -> None:
    config = speculation.speculative_config(folder, method, k)
    wanted = expected(method)
    with engine(
        speculation.target(folder, method),
        speculative_config=config,
        async_scheduling=async_scheduling,
        enforce_eager=eager,
        **speculation.arguments(),
    ) as llm:
        reset_counters()
        made = speculation.greedy(llm)
        replays = counters()["total"]["graph_replays"]
        drafted = speculation.metric(llm, "spec_decode_num_draft_tokens")
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        preempted = speculation.metric(llm, "num_preemptions")
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        verdicts = runner.model_runner.seq_lens_log.counts
    print(
        f"{method} k={k}: {accepted:.0f} of {drafted:.0f} drafts accepted, {preempted:.0f} "
        f"preempted, {replays} replays"
    )
    for number, ((tokens, scores), (plain, plain_scores)) in enumerate(
        zip(made, wanted, strict=True)
    ):
        assert tokens == plain, f"request {number}"
        for place, plain_place in zip(scores, plain_scores, strict=True):
            assert place == pytest.approx(plain_place, abs=1e-4), f"request {number}"
    assert drafted > 100
    assert accepted > (0 if method == "eagle3" else 20)
    assert accepted < drafted, "no draft was rejected"
    assert preempted > 0, "no request was preempted"
    assert (replays == 0) if eager else (replays > 20)
    assert {verdict.authority.value for verdict in verdicts} == {"device"}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("async_scheduling", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("method", speculation.METHODS)
def test_no_method_changes_an_answer(
    folder: Path, expected: Any, method: str, k: int, async_scheduling: bool, eager: bool
) -> None:
    check(folder, expected, method, k, async_scheduling, eager)
