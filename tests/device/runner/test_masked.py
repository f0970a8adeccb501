# SPDX-License-Identifier: Apache-2.0
"""Attention by upper bounds and a mask is attention by the true lengths; new blocks become zero."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers.emulated import counters, reset_counters
from vllm_ascend_mrv2.attention.fia import FiaCall
from vllm_ascend_mrv2.attention.key_mask import KeyMask
from vllm_ascend_mrv2.runner.masked import new_blocks, zero_blocks

BLOCK, HEADS, KV_HEADS, SIZE, COLUMNS = 16, 4, 2, 16, 6
TRUE_LENS = [4, 16, 17, 40]


def call(query: torch.Tensor, cache: torch.Tensor, **more: Any) -> FiaCall:
    table = torch.arange(1, 1 + len(TRUE_LENS) * COLUMNS, dtype=torch.int32, device="npu")
    return FiaCall(
        query=query,
        key_cache=cache[0],
        value_cache=cache[1],
        block_table=table.view(len(TRUE_LENS), COLUMNS),
        block_size=BLOCK,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        scale=0.3,
        **more,
    )


@pytest.mark.parametrize("query_len", [1, 4])
@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_a_bound_and_a_mask_attend_as_the_true_lengths(query_len: int, beyond: int) -> None:
    rows = len(TRUE_LENS)
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(
        2, 1 + rows * COLUMNS, BLOCK, KV_HEADS * SIZE, generator=generator
    )  # also beyond each length: what rejected drafts leave behind
    query = torch.randn(rows * query_len, HEADS, SIZE, generator=generator).npu()
    ends = list(range(query_len, rows * query_len + 1, query_len))
    exact = call(query, cache.npu()).attend(ends, TRUE_LENS)

    positions = torch.tensor(
        [length - query_len + i for length in TRUE_LENS for i in range(query_len)]
    ).npu()
    mask = KeyMask(rows, query_len, COLUMNS * BLOCK, "npu").fill(positions)
    assert mask.shape == (rows, 1, query_len, COLUMNS * BLOCK)
    masked = call(query.view(rows, query_len, HEADS, SIZE), cache.npu(), mask=mask)
    bounds = [length + beyond for length in TRUE_LENS]
    made = masked.attend([query_len] * rows, bounds)
    torch.testing.assert_close(made.view_as(exact).cpu(), exact.cpu(), rtol=0, atol=1e-6)


def test_a_mask_is_filled_without_a_wait_or_a_copy() -> None:
    mask = KeyMask(8, 4, 320, "npu")
    positions = torch.arange(32, device="npu")
    torch.npu.synchronize()
    reset_counters()
    mask.fill(positions)
    total = counters()["total"]
    assert total["host_wait_count"] == 0
    assert not any(m["count"] for kind in total["copies"]["h2d"].values() for m in kind.values())


def test_blocks_that_a_request_gets_are_new_unless_computed_already() -> None:
    cached = SimpleNamespace(new_block_ids=[None, ([9],), ([10, 11],)])
    new = [
        SimpleNamespace(block_ids=([1, 2, 3],), num_computed_tokens=0),
        SimpleNamespace(block_ids=([4, 5, 6],), num_computed_tokens=16),  # from the prefix cache
        SimpleNamespace(block_ids=([7, 8],), num_computed_tokens=31),  # the last of two in part
    ]
    output: Any = SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached)
    assert new_blocks(output, [16]) == [1, 2, 3, 5, 6, 9, 10, 11]


def test_zeroing_blocks_leaves_the_others() -> None:
    layers = [torch.full((5, 2, BLOCK, 8), float("nan"), device="npu") for _ in range(2)]
    zero_blocks(layers, [3, 1])
    for cache in layers:
        assert (cache[[1, 3]] == 0).all()
        assert cache[[0, 2, 4]].isnan().all()
    reset_counters()
    zero_blocks(layers, [])
    assert counters()["total"]["launch_count"] == 0
