# SPDX-License-Identifier: Apache-2.0
"""Capturing by hand, so that a refused call leaves nothing behind."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@functools.cache
def _capture_stream() -> torch.npu.Stream:
    """One for all: torch_npu keeps free memory by stream, and graphs share what is free there."""
    return torch.npu.Stream()


@contextmanager
def capture(
    mode: str = "global", pool: tuple[int, int] | None = None
) -> Iterator[torch.npu.NPUGraph]:
    """`with capture() as graph:`, which puts the current stream back even where the end fails.

    `torch.npu.graph` does not.
    """
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    arguments = {} if pool is None else {"pool": pool}
    with torch.npu.stream(_capture_stream()):
        graph.capture_begin(capture_error_mode=mode, **arguments)
        try:
            yield graph
        finally:
            graph.capture_end()
