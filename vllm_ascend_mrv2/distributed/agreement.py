# SPDX-License-Identifier: Apache-2.0
"""What ranks must decide alike before any of them runs a graph, as pure functions of all facts.

Ranks that exchange data in a step must run the same sequence of collectives with the same shapes.
A rank that captured another size, or that replays where its peer runs eagerly, waits for ever or
reads what is not meant for it. So each rank gives its facts, all get all, and each computes the
same verdict from them. How facts travel is the caller's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


def agreed_sizes(sizes_of_ranks: Sequence[Sequence[int]]) -> list[int]:
    """The capture sizes that every rank can have, ascending; each rank brings what it could."""
    first, *others = sizes_of_ranks
    return sorted(set(first).intersection(*others))


@dataclass(frozen=True)
class RankStep:
    """One data-parallel rank's step, before anything of it runs.

    takes_graph: by its own rule (graph/step_graphs.py) it can run as one graph, or it is idle.
    num_requests: of its batch; 0 for an idle rank, which runs along with an empty one.
    """

    takes_graph: bool
    num_requests: int


@dataclass(frozen=True)
class AgreedStep:
    """How every rank runs this step: `size` batch rows in one graph; None: core's step."""

    size: int | None
    reason: str


def decide_step_of_ranks(ranks: Sequence[RankStep], sizes: Sequence[int]) -> AgreedStep:
    """One verdict for all ranks. Pure; sizes: what all have captured, ascending."""
    against = [index for index, rank in enumerate(ranks) if not rank.takes_graph]
    if against:
        return AgreedStep(None, f"rank {against[0]} of {len(ranks)} needs core's step")
    most = max(rank.num_requests for rank in ranks)
    if most == 0:
        return AgreedStep(None, "every rank is idle")
    place = bisect_left(sizes, most)
    if place == len(sizes):
        return AgreedStep(None, "a rank has more requests than the largest captured size")
    return AgreedStep(sizes[place], "every rank replays the decode step of one size")


def exchange(
    mine: RankStep, rank: int, world_size: int, group: dist.ProcessGroup
) -> list[RankStep]:
    """Every rank's facts. A collective of host processes: every rank calls it once in each step."""
    facts = torch.zeros(world_size, 2, dtype=torch.int32)
    facts[rank, 0], facts[rank, 1] = int(mine.takes_graph), mine.num_requests
    dist.all_reduce(facts, group=group)
    return [RankStep(bool(takes), count) for takes, count in facts.tolist()]
