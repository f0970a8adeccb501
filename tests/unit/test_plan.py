# SPDX-License-Identifier: Apache-2.0
"""The FIA plan: what it takes, and that each broken rule is refused with the request named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_ascend_mrv2.attention.plan import (
    FiaPlan,
    HostSeqLens,
    PlanError,
    make_captured_plan,
    make_fia_plan,
    padded_decode_lens,
)


def plan(
    query_lens: list[int],
    kv_lens: list[int],
    *,
    num_tokens: int | None = None,
    rows: int | None = None,
    columns: int = 4,
    slots: int | None = None,
    max_model_len: int = 64,
    first: int = 0,
) -> FiaPlan:
    tokens = sum(query_lens) if num_tokens is None else num_tokens
    return make_fia_plan(
        query_start_loc=np.cumsum([first, *query_lens], dtype=np.int32),
        kv_lens=np.array(kv_lens, dtype=np.int32),
        num_tokens=tokens,
        block_table=torch.zeros(len(kv_lens) if rows is None else rows, columns, dtype=torch.int32),
        slot_mapping=torch.zeros(tokens if slots is None else slots, dtype=torch.int64),
        block_size=16,
        max_model_len=max_model_len,
    )


def test_a_mixed_batch() -> None:
    made = plan([1, 1, 7], [33, 1, 64])
    assert made.query_ends == [1, 2, 9]
    assert made.kv_lens == [33, 1, 64]
    assert made.num_tokens == 9
    assert all(type(value) is int for value in made.query_ends + made.kv_lens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_lens": [1, 1], "kv_lens": [3]}, "3 entries for 1 requests; 2 are needed"),
        ({"query_lens": [1, 1], "kv_lens": [3, 3], "num_tokens": 3}, "the step has 3 tokens"),
        ({"query_lens": [2], "kv_lens": [3], "first": 1, "num_tokens": 3}, "runs from 1 to 3"),
        ({"query_lens": [1, 0, 1], "kv_lens": [3, 3, 3]}, "request 1 of the batch has no query"),
        ({"query_lens": [1, 5], "kv_lens": [3, 4]}, "request 1 .* fewer KV tokens .* value is 4"),
        ({"query_lens": [1], "kv_lens": [0]}, "request 0 .* fewer KV tokens"),
        ({"query_lens": [1], "kv_lens": [65], "columns": 9}, "longer than max_model_len=64"),
        ({"query_lens": [1], "kv_lens": [33], "columns": 2}, "exceeds its 2 block-table columns"),
        ({"query_lens": [1, 1], "kv_lens": [3, 3], "rows": 1}, "1 rows for 2 requests"),
        ({"query_lens": [4], "kv_lens": [4], "slots": 3}, "3 slots for 4 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(**arguments)


def test_lengths_come_only_from_the_authority() -> None:
    lens = HostSeqLens()
    with pytest.raises(PlanError, match="no authority has published"):
        lens.require(1)
    lens.publish(np.array([3, 4], dtype=np.int32))
    assert lens.require(1).tolist() == [3]
    with pytest.raises(PlanError, match="for 3 requests"):
        lens.require(3)


def test_rows_without_a_request_attend_to_one_token() -> None:
    assert padded_decode_lens([5, 9], 4) == [5, 9, 1, 1]
    assert padded_decode_lens([5, 9, 0, 0], 4) == [5, 9, 1, 1]
    assert padded_decode_lens([5, 9, 0], 4, query_len=3) == [5, 9, 3, 3]


def test_a_captured_plan_has_one_token_per_row() -> None:
    table = torch.zeros(4, 2, dtype=torch.int32)
    slots = torch.zeros(4, dtype=torch.int64)
    made = make_captured_plan([5, 9, 0, 0], table, slots, block_size=16)
    assert made.query_ends == [1, 2, 3, 4]
    assert made.kv_lens == [5, 9, 1, 1]
    assert made.num_tokens == 4


def test_a_captured_plan_of_verification_has_several() -> None:
    table = torch.zeros(3, 2, dtype=torch.int32)
    slots = torch.zeros(12, dtype=torch.int64)
    made = make_captured_plan([5, 9], table, slots, block_size=16, query_len=4)
    assert made.query_ends == [4, 8, 12]
    assert made.kv_lens == [5, 9, 4]
    assert made.num_tokens == 12
