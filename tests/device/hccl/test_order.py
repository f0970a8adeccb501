# SPDX-License-Identifier: Apache-2.0
"""The order checker knows what collectives order, between processes too, and finds deadlocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.device.hccl import ordered
from tests.device.hccl.world import Program, World
from tests.helpers.emulated import OWN_FINDINGS

pytestmark = pytest.mark.xdist_group("hccl")

LAYOUTS = {"processes": [[0], [1]], "threads": [[0, 1]]}
ENVIRONMENT = {
    **OWN_FINDINGS,
    "ASCEND_EMU_CHECK_STALL_MS": "400",
    "ASCEND_EMU_CHECK_REGISTER_US": "0",  # is another test's
    "TASK_QUEUE_ENABLE": "0",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(LAYOUTS[request.param], **ENVIRONMENT) as started:
        yield started


# Not with ranks as threads: the checker takes the threads of a process for one host, and what one
# of them has waited for orders the others' work too, if it comes in between.
@pytest.mark.parametrize("world", ["processes"], indirect=True)
@pytest.mark.parametrize(
    ("program", "ranks", "kind", "names"),
    [
        (ordered.result_used, {0, 1}, "unordered-access", {"HcclAllReduce", "aclnnInplaceMuls"}),
        (ordered.input_overwritten, {0, 1}, "unordered-access", {"HcclAllGather"}),
        (ordered.there_and_back, {0}, "unordered-access", {"aclnnInplaceMuls"}),
        (ordered.one_communicator_on_two_streams, {0, 1}, "unordered-collective", set()),
    ],
)
def test_a_missing_wait_is_found(
    world: World, program: Program, ranks: set[int], kind: str, names: set[str]
) -> None:
    for rank, found in enumerate(world.run(program, False)):
        if rank not in ranks:
            continue
        assert kind in {finding["kind"] for finding in found}, found
        named = {each["name"] for finding in found for each in finding["operations"]}
        assert names <= named, found


@pytest.mark.parametrize(
    "program",
    [
        ordered.result_used,
        ordered.input_overwritten,
        ordered.there_and_back,
        ordered.one_communicator_on_two_streams,
    ],
)
def test_the_right_wait_is_not(world: World, program: Program) -> None:
    for found in world.run(program, True):
        assert found == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_wait_for_each_other_are_a_deadlock(layout: str) -> None:
    with World(LAYOUTS[layout], **ENVIRONMENT) as world:
        errors = [str(result) for _, result in world.outcomes(ordered.each_waits_for_the_other)]
    assert any("nothing moves" in error for error in errors), errors
    assert any("HcclRecv" in error and "rank 1" in error for error in errors), errors
