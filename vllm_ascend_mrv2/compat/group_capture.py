# SPDX-License-Identifier: Apache-2.0
"""Lets core's rank groups be captured with a communicator that is not CUDA's or XPU's.

Why: `GroupCoordinator.graph_capture` asserts one of those two classes as soon as a group has more
than one rank, and asks it for buffers that only CUDA's custom all-reduce has. HCCL's collectives
need nothing but the capture stream.
Core versions: 0.30 to 0.33. Goes when core asks the communicator for its capture context.
Undo with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_original: Any = None


@contextmanager
def _graph_capture(self: Any, graph_capture_context: Any = None) -> Iterator[Any]:
    """As core's: this block runs on the context's stream, after what was queued before it."""
    from vllm.distributed.parallel_state import GraphCaptureContext

    context = graph_capture_context or GraphCaptureContext(torch.npu.Stream())
    before = torch.npu.current_stream()
    if before != context.stream:
        context.stream.wait_stream(before)
    with torch.npu.stream(context.stream):
        yield context


def install() -> None:
    """Give core's groups a capture that asks for no class of communicator. Idempotent."""
    global _original
    from vllm.distributed.parallel_state import GroupCoordinator

    if _original is None:
        _original = GroupCoordinator.graph_capture
        GroupCoordinator.graph_capture = _graph_capture


def uninstall() -> None:
    """Give core's own method back."""
    global _original
    from vllm.distributed.parallel_state import GroupCoordinator

    if _original is not None:
        GroupCoordinator.graph_capture = _original
        _original = None
