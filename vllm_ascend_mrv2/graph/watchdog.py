# SPDX-License-Identifier: Apache-2.0
"""A bounded wait for a step's end, where its result is awaited.

A replay that misses an update never ends, and a blocking copy behind it would never return. So the
event of the step is polled with a deadline before anything blocks. Nothing here runs on the step
thread.
"""

from __future__ import annotations

import time

import torch

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.graph.replay import ReplayProtocol
from vllm_ascend_mrv2.graph.updates import UpdateError

# Sleep this part of the time waited so far: what polling adds to a step is at most that part.
_SLEEP_PART = 1 / 64
_SHORTEST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 10e-3


class ReplayTimeoutError(RuntimeError):
    """A step did not end within the limit."""


class Watchdog:
    """Waits for events of one worker's steps. Thread-safe."""

    def __init__(self, protocol: ReplayProtocol, limit_s: float, rank: int) -> None:
        self.protocol = protocol
        self.limit_s = limit_s
        self.rank = rank
        self.has_failed = False

    def wait(self, event: torch.npu.Event) -> None:
        """Return when `event` has completed; at once, at the cost of two queries, where it has.

        Raises ReplayTimeoutError past the limit and UpdateError where an update failed.
        """
        try:
            if not event.query():
                self._poll(event)
            # A replay whose update failed ends too, after the failure can be seen.
            self.protocol.check()
        except (ReplayTimeoutError, UpdateError):
            self.has_failed = True
            raise

    def _poll(self, event: torch.npu.Event) -> None:
        begin = time.monotonic()
        while not event.query():
            self.protocol.check()
            waited_s = time.monotonic() - begin
            if waited_s > self.limit_s:
                raise ReplayTimeoutError(
                    f"rank {self.rank}: a step did not end within {self.limit_s:g} s "
                    f"({envs.REPLAY_TIMEOUT_S.name}). {self.protocol.report()}. The engine ends, "
                    "since the device does not come back from this."
                )
            time.sleep(min(max(waited_s * _SLEEP_PART, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
