# SPDX-License-Identifier: Apache-2.0
"""Speculation does not change an answer: greedy tokens with it are those without it, in float32.

One mixed load in each engine: batches of 1 to 16, chunked prefill, prefix caching, preemption, and
what stands on top of greedy sampling. Method, k, graphs and async scheduling are an engine each: by
default every value and every pair of them, by SPEC_TABLE=full all sixty.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine import speculation
from tests.engine.in_process import runner_of
from tests.helpers.emulated import counters, reset_counters

pytestmark = [pytest.mark.spec, pytest.mark.long, pytest.mark.xdist_group("spec-exactness")]

DRAFTS = (1, 3, 5)
ROWS = tuple(itertools.product(speculation.METHODS, DRAFTS, (False, True), (False, True)))


def covers_pairs(row: tuple[str, int, bool, bool]) -> bool:
    """One of four for each method and k, so that all pairs with the other two occur."""
    method, k, eager, async_scheduling = row
    place = speculation.METHODS.index(method) + DRAFTS.index(k)
    return (eager, async_scheduling) == (place % 2 == 0, place // 2 % 2 == 0)


TABLE = [row for row in ROWS if os.environ.get("SPEC_TABLE") == "full" or covers_pairs(row)]
for _one, _other in itertools.combinations(range(4), 2):
    _pairs = {(row[_one], row[_other]) for row in ROWS}
    assert {(row[_one], row[_other]) for row in TABLE} == _pairs, "a pair is not in the table"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def expected(folder: Path) -> Callable[[str], Any]:
    return speculation.plain_answers(folder)


@pytest.mark.parametrize(
    ("method", "k", "eager", "async_scheduling"),
    TABLE,
    ids=[
        f"{method}-{k}-{'eager' if eager else 'graphs'}-{'async' if asynchronous else 'sync'}"
        for method, k, eager, asynchronous in TABLE
    ],
)
def test_no_method_changes_an_answer(
    folder: Path,
    expected: Callable[[str], Any],
    method: str,
    k: int,
    eager: bool,
    async_scheduling: bool,
) -> None:
    read = check(folder, expected, method, k, eager, async_scheduling)
    assert read == {"device"}


@pytest.mark.parametrize("sampling", ["standard", "block"])
def test_probabilistic_drafts_change_no_greedy_answer(
    folder: Path, expected: Callable[[str], Any], sampling: str
) -> None:
    more = {"draft_sample_method": "probabilistic", "rejection_sample_method": sampling}
    check(folder, expected, "eagle", 3, eager=False, async_scheduling=True, config=more)


@pytest.mark.parametrize(
    ("method", "k", "eager", "async_scheduling"),
    [
        ("mtp", 5, False, True),
        ("eagle", 3, False, True),
        ("eagle", 5, True, False),
        ("eagle3", 1, False, False),
        ("ngram_gpu", 3, False, True),
        ("ngram_gpu", 5, True, True),
    ],
)
def test_masked_lengths_change_no_answer(
    folder: Path,
    expected: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    k: int,
    eager: bool,
    async_scheduling: bool,
) -> None:
    expected(method)  # without the switch
    monkeypatch.setenv("VLLM_ASCEND_MRV2_SPEC_LENGTHS", "masked")
    read = check(folder, expected, method, k, eager, async_scheduling)
    assert read == {"device", "upper bound"}  # prompts' chunks, and verification


def check(
    folder: Path,
    expected: Callable[[str], Any],
    method: str,
    k: int,
    eager: bool,
    async_scheduling: bool,
    config: dict[str, Any] | None = None,
) -> set[str]:
    """That the load's answers are the expected ones; who said the lengths."""
    wanted = expected(method)
    with speculation.speculating(
        folder, method, k, eager=eager, async_scheduling=async_scheduling, config=config
    ) as llm:
        reset_counters()
        made = speculation.greedy(llm)
        replays = counters()["total"]["graph_replays"]
        drafted = speculation.metric(llm, "spec_decode_num_draft_tokens")
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        preempted = speculation.metric(llm, "num_preemptions")
        verdicts = dict(runner_of(llm).seq_lens_log.counts)
    authorities = {verdict.authority.value: count for verdict, count in verdicts.items()}
    print(
        f"{method} k={k}: {accepted:.0f} of {drafted:.0f} drafts accepted, {preempted:.0f} "
        f"preempted, {replays} replays, lengths: {authorities}"
    )
    speculation.assert_equal(made, wanted)
    assert drafted > 100
    assert accepted > (0 if method == "eagle3" else 20)
    assert accepted < drafted, "no draft was rejected"
    assert preempted > 0, "no request was preempted"
    assert (replays == 0) if eager else (replays > 20)
    return set(authorities)
