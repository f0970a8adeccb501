# SPDX-License-Identifier: Apache-2.0
"""What ranks decide alike: the rules' tables. Every rank computes from the same facts."""

from __future__ import annotations

import itertools

import pytest

from vllm_ascend_mrv2.distributed.agreement import (
    RankStep,
    agreed_sizes,
    decide_step_of_ranks,
)
from vllm_ascend_mrv2.graph.shares import shares_of

SIZES = [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("of_ranks", "agreed"),
    [
        ([[1, 2, 4]], [1, 2, 4]),
        ([[4, 2, 1], [1, 2, 4]], [1, 2, 4]),
        ([[1, 2, 4, 8], [1, 2], [2, 8, 1]], [1, 2]),
        ([[1, 2], []], []),
        ([[1, 4], [2, 8]], []),
    ],
)
def test_only_sizes_that_every_rank_has(of_ranks: list[list[int]], agreed: list[int]) -> None:
    for order in itertools.permutations(of_ranks):
        assert agreed_sizes(order) == agreed


@pytest.mark.parametrize(
    ("ranks", "size"),
    [
        ([(True, 3), (True, 1)], 4),
        ([(True, 8), (True, 0)], 8),  # one full, one idle
        ([(True, 1), (True, 1), (True, 1)], 1),
        ([(True, 9), (True, 1)], None),  # one beyond what is captured: nobody replays
        ([(True, 3), (False, 3)], None),  # one with a prompt: nobody replays
        ([(False, 3), (False, 1)], None),
        ([(False, 3), (True, 0)], None),
        ([(True, 0), (True, 0)], None),  # nothing to run
    ],
)
def test_all_ranks_replay_one_size_or_none_does(
    ranks: list[tuple[bool, int]], size: int | None
) -> None:
    for order in itertools.permutations(ranks):
        agreed = decide_step_of_ranks([RankStep(*rank) for rank in order], SIZES)
        assert agreed.size == size
        assert agreed.reason


def test_the_size_holds_every_rank() -> None:
    for takes in itertools.product((False, True), repeat=2):
        for counts in itertools.product(range(10), repeat=2):
            ranks = [RankStep(*facts) for facts in zip(takes, counts, strict=True)]
            size = decide_step_of_ranks(ranks, SIZES).size
            may_replay = all(takes) and 0 < max(counts) <= SIZES[-1]
            assert (size is not None) == may_replay
            if size is not None:
                assert size in SIZES
                assert max(counts) <= size
                assert not any(max(counts) <= smaller < size for smaller in SIZES)


def test_without_captured_sizes_nobody_replays() -> None:
    assert decide_step_of_ranks([RankStep(True, 1), RankStep(True, 1)], []).size is None


@pytest.mark.parametrize("num_ranks", range(1, 9))
@pytest.mark.parametrize("num_rows", range(1, 20))
def test_shares_count_each_row_once(num_rows: int, num_ranks: int) -> None:
    batch = list(range(num_rows))
    shares = shares_of(num_rows, num_ranks)
    mine = [batch[share.rows] for share in shares]
    (size,) = {len(rows) for rows in mine}  # a collective takes as many from each
    assert (size - 1) * num_ranks < num_rows
    counted = [rows[size - share.counted :] for rows, share in zip(mine, shares, strict=True)]
    assert [row for rows in counted for row in rows] == batch
