# SPDX-License-Identifier: Apache-2.0
"""Which batch sizes are captured within a budget of streams and memory."""

from __future__ import annotations

import pytest

from vllm_ascend_mrv2.graph.budget import CaptureBudget, prune_sizes

SIZES = [1, 2, 4, 8, 16, 24, 32]
MIB = 1 << 20


def sizes(streams: int, memory_mib: int, per_row_mib: int = 1) -> tuple[int, ...]:
    return prune_sizes(
        SIZES, 3, lambda size: size * per_row_mib * MIB, CaptureBudget(streams, memory_mib * MIB)
    ).sizes


def test_all_fit() -> None:
    made = prune_sizes([8, 2, 8, 1], 3, lambda size: size * MIB, CaptureBudget(1856, 64 * MIB))
    assert made.sizes == (1, 2, 8)
    assert made.reason == (
        "3 of 3 sizes: 3 x 3 graphs use 9 of 1856 streams and about 11 of 64 MiB"
    )


def test_memory_keeps_the_smallest() -> None:
    assert sizes(streams=1000, memory_mib=31) == (1, 2, 4, 8, 16)
    assert sizes(streams=1000, memory_mib=30) == (1, 2, 4, 8)


@pytest.mark.parametrize(("streams", "kept"), [(21, 7), (20, 6), (9, 3), (3, 1), (2, 0), (0, 0)])
def test_streams_keep_evenly_spaced_sizes_with_the_largest(streams: int, kept: int) -> None:
    made = sizes(streams, memory_mib=1000)
    assert len(made) == kept
    assert not made or made[-1] == 32


def test_nothing_fits() -> None:
    assert sizes(streams=1000, memory_mib=0) == ()
