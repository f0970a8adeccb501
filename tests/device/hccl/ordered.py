# SPDX-License-Identifier: Apache-2.0
"""Programs of two ranks for the order checker: each with a wait left out, or in its place.

What each returns is what the checker of its process found.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.device.hazards.harness import findings
from tests.device.hccl.programs import capture
from tests.device.hccl.world import Rank
from tests.helpers.emulated import acl


def _found(rank: Rank) -> list[dict[str, Any]]:
    """All findings here, once both ranks are done; and none of them for the next program."""
    torch.npu.synchronize()
    found = findings()
    rank.meet(f"found {_rounds(rank)}")
    acl().emu_check_reset()
    rank.meet(f"reset {_rounds(rank)}")
    _ROUNDS[rank.rank] = _rounds(rank) + 1
    return found


_ROUNDS: dict[int, int] = {}


def _rounds(rank: Rank) -> int:
    return _ROUNDS.get(rank.rank, 0)


def result_used(rank: Rank, is_waited_for: bool) -> list[dict[str, Any]]:
    """The sum of all ranks is used on the compute stream."""
    tensor = torch.ones(64, device=rank.device)
    work = rank.group.allreduce([tensor])
    if is_waited_for:
        work.wait()
    tensor.mul_(2)
    work.wait()
    return _found(rank)


def input_overwritten(rank: Rank, is_waited_for: bool) -> list[dict[str, Any]]:
    """What a rank gives to the others is overwritten after the call returns."""
    part, whole = torch.ones(64, device=rank.device), torch.empty(128, device=rank.device)
    work = rank.group._allgather_base(whole, part)
    if is_waited_for:
        work.wait()
    part.zero_()
    work.wait()
    return _found(rank)


def _move(rank: Rank, group: Any, sender: int, tensor: torch.Tensor) -> Any:
    if rank.rank == sender:
        return group.send([tensor], 1 - sender, 0)
    return group.recv([tensor], sender, 0)


def there_and_back(rank: Rank, is_waited_for: bool) -> list[dict[str, Any]]:
    """Two streams of rank 0, ordered only by a message to rank 1 and its answer."""
    there, back = rank.new_group(f"there {_rounds(rank)}"), rank.new_group(f"back {_rounds(rank)}")
    data, token = torch.ones(64, device=rank.device), torch.ones(1, device=rank.device)
    other = torch.npu.Stream()
    _move(rank, there, 0, token).wait()  # what is made at the first use of a group is made here
    _move(rank, back, 1, token).wait()
    torch.npu.synchronize()
    if rank.rank == 1:
        _move(rank, there, 0, token).wait()
        _move(rank, back, 1, token).wait()
        return _found(rank)
    data.mul_(2)
    _move(rank, there, 0, token)
    with torch.npu.stream(other):
        answer = torch.empty(1, device=rank.device)
        work = _move(rank, back, 1, answer)
        if is_waited_for:
            work.wait()
        data.add_(1)
        work.wait()
    return _found(rank)


def one_communicator_on_two_streams(rank: Rank, is_waited_for: bool) -> list[dict[str, Any]]:
    """A sum in a replay and one beside it: on another rank they may come the other way round."""
    first, second = torch.ones(8, device=rank.device), torch.ones(8, device=rank.device)
    rank.group.allreduce([first]).wait()
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with capture(graph):
        rank.group.allreduce([first]).wait()
    other = torch.npu.Stream()
    graph.replay()
    if is_waited_for:
        other.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(other):
        rank.group.allreduce([second]).wait()
    return _found(rank)


def each_waits_for_the_other(rank: Rank) -> str:
    """Both receive before they send."""
    tensor = torch.empty(4, device=rank.device)
    rank.group.recv([tensor], 1 - rank.rank, 0).wait()
    rank.group.send([tensor], 1 - rank.rank, 0).wait()
    try:
        torch.npu.synchronize()
    except RuntimeError as error:
        return str(error)
    return "no error"
