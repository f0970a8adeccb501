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


def test_reduce(world: World) -> None:
    root = world.ranks - 1
    seen = world.run(programs.reduce, "sum", torch.bfloat16, 1000, root)[root]
    assert torch.equal(seen, reduced("sum", world.ranks, 1000, torch.bfloat16))


@pytest.mark.parametrize("count", [3, LARGE])
def test_reduce_scatter(world: World, count: int) -> None:
    whole = reduced("sum", world.ranks, count * world.ranks, torch.float32)
    for rank, seen in enumerate(world.run(programs.reduce_scatter, "sum", torch.float32, count)):
        assert torch.equal(seen, whole.chunk(world.ranks)[rank])


def test_scatter(world: World) -> None:
    whole = values(0, 5 * world.ranks, torch.float32)
    for rank, seen in enumerate(world.run(programs.scatter, 0, 5)):
        assert torch.equal(seen, whole.chunk(world.ranks)[rank])


@pytest.mark.parametrize("count", [3, LARGE])
def test_all_to_all(world: World, count: int) -> None:
    sent = [values(rank, count * world.ranks, torch.float32) for rank in range(world.ranks)]
    for rank, seen in enumerate(world.run(programs.all_to_all, count)):
        assert torch.equal(seen, torch.cat([each.chunk(world.ranks)[rank] for each in sent]))


@pytest.mark.parametrize("count", [2, LARGE])
def test_all_to_all_of_splits(world: World, count: int) -> None:
    parts = []
    for rank in range(world.ranks):
        sizes = programs.splits(rank, world.ranks, count)
        parts.append(values(rank, sum(sizes), torch.float32).split(sizes))
    for rank, seen in enumerate(world.run(programs.all_to_all_of_splits, count)):
        assert torch.equal(seen, torch.cat([each[rank] for each in parts]))


def test_all_gather_of_unequal_parts(world: World) -> None:
    counts = [4 + 3 * rank for rank in range(world.ranks)]
    for seen in world.run(programs.all_gather_of_unequal, counts):
        for rank, part in enumerate(seen):
            assert torch.equal(part, values(rank, counts[rank], torch.float32))


@pytest.mark.parametrize("count", [3, LARGE])
def test_a_batch_of_messages(world: World, count: int) -> None:
    for seen in world.run(programs.batch, count):
        for index, received in enumerate(seen):
            k, sender = divmod(index, world.ranks)
            assert torch.equal(received, values(sender, count, torch.float32) * (k + 1))


def test_barrier(world: World) -> None:
    world.run(programs.barrier)


def test_collectives_in_a_graph_that_is_replayed(world: World) -> None:
    for seen in world.run(programs.replays, 4):
        for step, result in enumerate(seen):
            inputs = [values(rank + 10 * step, 64, torch.float32) for rank in range(world.ranks)]
            summed = functools.reduce(torch.add, (each * 2 for each in inputs))
            whole = torch.cat([summed + rank for rank in range(world.ranks)])
            assert torch.equal(result, whole + 1), step


def test_the_public_api_and_its_communicators() -> None:
    with World([[0], [1], [2]]) as world:
        seen = world.run(programs.distributed)
    for rank, tensors in enumerate(seen):
        assert tensors["all"].tolist() == [6.0] * 4
        assert tensors["objects"].tolist() == [0, 1, 2]
        parts = [values(each, count, torch.float32) for count in (3, 8) for each in range(3)]
        assert torch.equal(tensors["coalesced"], torch.cat(parts))
        assert tensors["ring"].tolist() == [6.0 + (rank - 1) % 3] * 4
    assert [tensors["pair"].tolist() for tensors in seen[:2]] == [[1.5] * 4] * 2
