# SPDX-License-Identifier: Apache-2.0
"""How many batch sizes may be captured: streams and memory are counted before, not run out of.

A capture that runs out half way leaves a device that cannot create a stream. Nothing here touches
the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# What CANN 8.5 documents for Atlas A2 and A3 (aclrtCreateStream).
DEVICE_STREAMS = 1984
# For all that is not a captured graph: compute, copies, updates, collectives, the caller's own.
RESERVED_STREAMS = 128


def bytes_per_row(vocab_size: int, hidden_size: int, itemsize: int) -> int:
    """About what a batch row adds to the memory of a size's graphs.

    Six float32 rows of logits (the forward's, and those that seeded sampling works on) and sixteen
    rows of hidden state; graphs share one pool, so this is an upper estimate.
    """
    return 6 * vocab_size * 4 + 16 * hidden_size * itemsize


@dataclass(frozen=True)
class CaptureBudget:
    """What captured graphs may use. memory_bytes: free once weights and KV cache are there."""

    streams: int
    memory_bytes: int


@dataclass(frozen=True)
class CaptureSizes:
    """The sizes to capture, and the arithmetic that led to them."""

    sizes: tuple[int, ...]
    reason: str


def prune_sizes(
    sizes: Sequence[int],
    streams_per_size: int,
    bytes_of: Callable[[int], int],
    budget: CaptureBudget,
) -> CaptureSizes:
    """Keep what fits: the smallest sizes by memory, then evenly spaced ones by streams.

    bytes_of: size -> bytes that its graphs add. The smallest sizes are kept, since a batch above
    the largest runs eagerly, and small batches gain the most.
    """
    wanted = sorted(set(sizes))
    kept: list[int] = []
    used_bytes = 0
    for size in wanted:
        if used_bytes + bytes_of(size) > budget.memory_bytes:
            break
        used_bytes += bytes_of(size)
        kept.append(size)
    most = budget.streams // streams_per_size
    if len(kept) > most:
        step = len(kept) / most if most else 0
        kept = sorted({kept[int((i + 1) * step) - 1] for i in range(most)})
    used_bytes = sum(map(bytes_of, kept))
    reason = (
        f"{len(kept)} of {len(wanted)} sizes: {len(kept)} x {streams_per_size} graphs use "
        f"{len(kept) * streams_per_size} of {budget.streams} streams and about "
        f"{used_bytes / 2**20:.0f} of {budget.memory_bytes / 2**20:.0f} MiB"
    )
    return CaptureSizes(tuple(kept), reason)
