# SPDX-License-Identifier: Apache-2.0
"""Which rows of a batch each rank works on, where all have the batch and results are gathered.

A collective in a graph takes as many rows from each rank, so shares are alike in size and the last
ones may overlap; what two ranks made is taken from one. Pure; knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """One rank's rows: `rows` of the batch, of which the last `counted` are taken from it."""

    rows: slice
    counted: int


def shares_of(num_rows: int, num_ranks: int) -> list[Share]:
    """Every rank's share, in the order of ranks: what is counted is each row once, in order."""
    size = -(-num_rows // num_ranks)
    begins = (min(rank * size, num_rows - size) for rank in range(num_ranks))
    return [
        Share(slice(begin, begin + size), max(0, min(size, num_rows - rank * size)))
        for rank, begin in enumerate(begins)
    ]
