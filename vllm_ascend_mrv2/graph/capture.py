# SPDX-License-Identifier: Apache-2.0
"""A captured graph with its attention tasks, and the capture itself.

What is captured is the caller's. Capture happens on a stream of its own, since the default stream
cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vllm_ascend_mrv2.attention.fia import capturing_into
from vllm_ascend_mrv2.graph.tasks import AttentionTasks
from vllm_ascend_mrv2.graph.updates import Updates, chosen


class CapturedGraph:
    """A graph, the attention tasks in it, and the name that a report gives it.

    Stands where core's graph manager keeps a torch.cuda.CUDAGraph. Its `replay` is whatever the
    protocol armed it with for this one replay: a graph whose lengths nobody gave cannot run.
    """

    def __init__(self, name: str = "graph", updates: Updates | None = None) -> None:
        """updates: how its tasks will be updated; None is what was chosen for this process."""
        self.name = name
        self.graph = torch.npu.NPUGraph()
        self.tasks = AttentionTasks((updates or chosen()).new_event)
        self.num_tasks = 0  # set when the capture ends
        self._armed: Callable[[], None] | None = None

    def arm(self, replay: Callable[[], None]) -> None:
        """Say what the next `replay` does."""
        self._armed = replay

    def replay(self) -> None:
        """Replay as armed. Raises RuntimeError if nobody armed it for this replay."""
        armed, self._armed = self._armed, None
        if armed is None:
            raise RuntimeError(
                f"{self.name}: a replay without this step's host lengths. This is a fault of the "
                "plugin; please report it."
            )
        armed()


@contextmanager
def capture(captured: CapturedGraph, pool: Any, stream: torch.npu.Stream) -> Iterator[None]:
    """Capture the device work of this block into `captured`, memory from `pool`."""
    with capturing_into(captured.tasks), torch.npu.graph(captured.graph, pool=pool, stream=stream):
        yield
    captured.num_tasks = len(captured.tasks.tasks)
