# SPDX-License-Identifier: Apache-2.0
"""The replay protocol: the one order in which a graph may be replayed and its tasks updated.

(a) order the update stream after the previous replay's readers, (b) submit the replay, (c) update
each task, (d) record each event. Between (b) and the last (d) the device waits for this host: a
host wait or a device read in that window is a deadlock, so it is refused here instead.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import torch

from vllm_ascend_mrv2.graph.capture import CapturedGraph


class WindowError(RuntimeError):
    """Something would have waited for the device while the device waits for the host."""


class ReplayState(enum.Enum):
    """Where the protocol stands."""

    IDLE = "no update is due"
    OPEN = "a replay waits for its updates"
    BROKEN = "an update failed; the device waits for good"


class ReplayProtocol:
    """Replays graphs of one worker on one compute stream. The step thread's; not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.update_stream = torch.npu.Stream(device)
        self.state = ReplayState.IDLE
        self._previous_done: torch.npu.Event | None = None

    def refuse_wait(self, what: str) -> None:
        """To be called by everything that waits for the device. Raises WindowError inside."""
        if self.state is not ReplayState.IDLE:
            raise WindowError(
                f"{what} inside a replay window ({self.state.value}): it would wait for a device "
                "that waits for this host. This is a fault of the plugin; please report it."
            )

    def replay(
        self, captured: CapturedGraph, query_ends: list[int], kv_lens: Sequence[int]
    ) -> None:
        """Replay `captured` with these host lengths. Waits for nothing.

        Raises WindowError if an earlier replay was never completed. An exception in an update
        leaves the protocol BROKEN, since the device then waits for an event that nobody records.
        """
        self.refuse_wait("another replay")
        if self._previous_done is not None:
            self.update_stream.wait_event(self._previous_done)
        captured.graph.replay()
        self.state = ReplayState.OPEN
        try:
            captured.tasks.update(self.update_stream, query_ends, kv_lens, captured.num_tasks)
        except BaseException:
            self.state = ReplayState.BROKEN
            raise
        self.state = ReplayState.IDLE
        done = torch.npu.Event()
        done.record(torch.npu.current_stream(self.device))
        self._previous_done = done
