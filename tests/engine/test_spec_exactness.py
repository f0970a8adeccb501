# SPDX-License-Identifier: Apache-2.0
"""Speculation does not change an answer: greedy tokens with it are those without it, in float32.

One mixed load in each engine: batches of 1 to 16, chunked prefill, prefix caching, preemption, and
what stands on top of greedy sampling. Method, k, graphs and async scheduling are an engine each: by
default every value and every pair of them, by SPEC_TABLE=full all sixty.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine import speculation
from tests.engine.in_process import runner_of
from tests.helpers.emulated import counters, reset_counters

pytestmark = [pytest.mark.spec, pytest.mark.long, pytest.mark.xdist_group("spec-exactness")]

DRAFTS = (1, 3, 5)


class Row(NamedTuple):
    """One engine of the table."""

    method: str
    k: int
    eager: bool
    async_scheduling: bool

    def __str__(self) -> str:
        mode = "eager" if self.eager else "graphs"
        return f"{self.method}-{self.k}-{mode}-{'async' if self.async_scheduling else 'sync'}"


ROWS = tuple(
    Row(*row) for row in product(speculation.METHODS, DRAFTS, (False, True), (False, True))
)


def covers_pairs(row: Row) -> bool:
    """One of four for each method and k, so that all pairs with the other two occur."""
    place = speculation.METHODS.index(row.method) + DRAFTS.index(row.k)
    return (row.eager, row.async_scheduling) == (place % 2 == 0, place // 2 % 2 == 0)


TABLE = [row for row in ROWS if os.environ.get("SPEC_TABLE") == "full" or covers_pairs(row)]
for _one, _other in combinations(range(4), 2):
    _pairs = {(row[_one], row[_other]) for row in ROWS}
    assert {(row[_one], row[_other]) for row in TABLE} == _pairs, "a pair is not in the table"
# Five drafts of sixteen requests leave no room for a chunk beside them, and few steps without one;
# of a good drafter they are done before the blocks run out.
FIVE_DRAFTS = {"max_num_batched_tokens": 256, "num_gpu_blocks_override": 52}
# Of the methods that can do without the barrier; it is off by default.
MASKED = (
    Row("mtp", 5, eager=False, async_scheduling=True),
    Row("eagle", 3, eager=False, async_scheduling=True),
    Row("eagle", 5, eager=True, async_scheduling=False),
    Row("eagle3", 1, eager=False, async_scheduling=False),
    Row("ngram_gpu", 3, eager=False, async_scheduling=True),
    Row("ngram_gpu", 5, eager=True, async_scheduling=True),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def expected(folder: Path) -> Callable[[str], Any]:
    return speculation.plain_answers(folder)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_no_method_changes_an_answer(
    folder: Path, expected: Callable[[str], Any], row: Row
) -> None:
    assert check(folder, expected, row) == {"device"}


@pytest.mark.parametrize("sampling", ["standard", "block"])
def test_probabilistic_drafts_change_no_greedy_answer(
    folder: Path, expected: Callable[[str], Any], sampling: str
) -> None:
    more = {"draft_sample_method": "probabilistic", "rejection_sample_method": sampling}
    check(folder, expected, Row("eagle", 3, eager=False, async_scheduling=True), config=more)


@pytest.mark.parametrize("row", MASKED, ids=str)
def test_masked_lengths_change_no_answer(
    folder: Path, expected: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    expected(row.method)  # without the switch
    monkeypatch.setenv("VLLM_ASCEND_MRV2_SPEC_LENGTHS", "masked")
    # Prompts' chunks, and verification.
    assert check(folder, expected, row) == {"device", "upper bound"}


def check(
    folder: Path,
    expected: Callable[[str], Any],
    row: Row,
    config: dict[str, Any] | None = None,
) -> set[str]:
    """That the load's answers are the expected ones; who said the lengths."""
    wanted = expected(row.method)
    room = FIVE_DRAFTS if row.k == 5 else {}
    with speculation.speculating(folder, **row._asdict(), config=config, **room) as llm:
        reset_counters()
        made = speculation.greedy(llm)
        replays = counters()["total"]["graph_replays"]
        drafted = speculation.metric(llm, "spec_decode_num_draft_tokens")
        accepted = speculation.metric(llm, "spec_decode_num_accepted_tokens")
        preempted = speculation.metric(llm, "num_preemptions")
        verdicts = dict(runner_of(llm).seq_lens_log.counts)
    authorities = {verdict.authority.value: count for verdict, count in verdicts.items()}
    print(
        f"{row}: {accepted:.0f} of {drafted:.0f} drafts accepted, {preempted:.0f} "
        f"preempted, {replays} replays, lengths: {authorities}"
    )
    speculation.assert_equal(made, wanted)
    assert drafted > 100
    assert accepted > (0 if row.method == "eagle3" else 20)
    assert accepted < drafted, "no draft was rejected"
    assert preempted > 0, "no request was preempted"
    assert (replays == 0) if row.eager else (replays > 20)
    return set(authorities)


def test_no_size_is_captured_that_no_step_can_have(
    folder: Path, expected: Callable[[str], Any]
) -> None:
    """All requests with all their drafts have more tokens than a step may."""
    wanted = expected("ngram_gpu")
    room = {"max_num_seqs": 32, "max_num_batched_tokens": 64}
    with speculation.speculating(folder, "ngram_gpu", 2, **room) as llm:
        made = speculation.greedy(llm)
        assert max(runner_of(llm).cudagraph_manager.captured_token_counts()) == 63
    speculation.assert_equal(made, wanted)
