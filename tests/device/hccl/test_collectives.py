# SPDX-License-Identifier: Apache-2.0
"""Collectives between processes and between threads give what their definition gives, bit by bit.

The reference is computed here, in the order of the ranks, with torch on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.device.hccl import programs
from tests.device.hccl.programs import values
from tests.device.hccl.world import World

pytestmark = pytest.mark.xdist_group("hccl")

LAYOUTS = {"processes": [[0], [1]], "threads": [[0, 1, 2]]}
# More than one round of an exchange (1 MiB), and no whole number of them.
LARGE = 300_007


@pytest.fixture(scope="module", params=LAYOUTS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(LAYOUTS[request.param]) as started:
        yield started


COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


def reduced(op: str, ranks: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return functools.reduce(COMBINE[op], (values(rank, count, dtype) for rank in range(ranks)))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_all_reduce(world: World, op: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
        for count in (1, 1000):
            for seen in world.run(programs.all_reduce, op, dtype, count):
                assert torch.equal(seen, reduced(op, world.ranks, count, dtype)), (op, dtype)


def test_all_reduce_of_more_than_one_round(world: World) -> None:
    for seen in world.run(programs.all_reduce, "sum", torch.float32, LARGE):
        assert torch.equal(seen, reduced("sum", world.ranks, LARGE, torch.float32))


@pytest.mark.parametrize("count", [5, LARGE])
def test_all_gather(world: World, count: int) -> None:
    whole = torch.cat([values(rank, count, torch.float32) for rank in range(world.ranks)])
    for seen in world.run(programs.all_gather, torch.float32, count):
        assert torch.equal(seen, whole)


@pytest.mark.parametrize("count", [7, LARGE])
def test_broadcast(world: World, count: int) -> None:
    root = world.ranks - 1
    for seen in world.run(programs.broadcast, root, count):
        assert torch.equal(seen, values(root, count, torch.float32))


@pytest.mark.parametrize("count", [3, LARGE])
def test_messages(world: World, count: int) -> None:
    for rank, seen in enumerate(world.run(programs.ring, count)):
        before = (rank - 1) % world.ranks
        assert torch.equal(seen, values(before, count, torch.float32))


def test_barrier(world: World) -> None:
    world.run(programs.barrier)
