# SPDX-License-Identifier: Apache-2.0
"""The replay protocol: the one order in which a graph may be replayed and its tasks updated.

(a) submit the replay, record its done event, (b) order the update stream after the previous
replay's done event, (c) update each task, (d) record each event. Between (a) and the last (d) the
device waits for this host: a host wait or a device read in that window is a deadlock, so it is
refused here instead. Who does (b) to (d), and on which thread, is updates.py's.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

import torch

from vllm_ascend_mrv2.graph.capture import CapturedGraph
from vllm_ascend_mrv2.graph.updates import UpdateError, Updates, chosen

# How long the step thread waits for the host's own updates before it calls them lost.
_SETTLE_S = 60.0
_KEPT = 16  # replays that a report can name; more are never in flight


class WindowError(RuntimeError):
    """Something would have waited for the device while the device waits for the host."""


class ReplayState(enum.Enum):
    """Where the protocol stands."""

    IDLE = "no update is due"
    OPEN = "a replay waits for its updates"
    BROKEN = "an update failed; no later result is right"


class ReplayProtocol:
    """Replays graphs of one worker on one compute stream. The step thread's; not thread-safe.

    `report`, `check` may be called by any thread.
    """

    def __init__(self, device: torch.device, updates: Updates | None = None) -> None:
        """updates: how tasks are updated; None is what was chosen for this process."""
        self.device = device
        self.updater = (updates or chosen()).updater(device)
        self._is_submitting = False
        self._failure = ""
        self._replayed: deque[CapturedGraph] = deque(maxlen=_KEPT)
        self._count = 0

    @property
    def state(self) -> ReplayState:
        """As of now: updates may be issued by another thread."""
        try:
            self.check()
        except UpdateError:
            return ReplayState.BROKEN
        is_open = self._is_submitting or self.updater.outstanding() > 0
        return ReplayState.OPEN if is_open else ReplayState.IDLE

    def check(self) -> None:
        """Raises UpdateError if an update of any replay failed."""
        if self._failure:
            raise UpdateError(self._failure)
        self.updater.check()

    def refuse_wait(self, what: str) -> None:
        """To be called by everything that waits for the device. Raises WindowError inside."""
        state = self.state
        if state is not ReplayState.IDLE:
            raise WindowError(
                f"{what} inside a replay window ({state.value}): it would wait for a device "
                "that waits for this host. This is a fault of the plugin; please report it."
            )

    def close_window(self, what: str) -> None:
        """Let outstanding updates be issued (a wait for the host alone), then `refuse_wait`.

        For what must wait for the device on the step thread. Raises WindowError where updates are
        not issued, UpdateError where one failed.
        """
        if not self._is_submitting:
            self.updater.settle(_SETTLE_S)
            self.check()
        self.refuse_wait(what)

    def replay(
        self, captured: CapturedGraph, query_ends: list[int], kv_lens: Sequence[int]
    ) -> None:
        """Replay `captured` with these host lengths. Waits for nothing.

        Raises UpdateError if an update failed, now or earlier: the protocol is then BROKEN.
        Raises TaskMismatchError before anything was submitted.
        """
        self.check()
        if self._is_submitting:
            raise WindowError("a replay inside another's window; please report this")
        self.updater.prepare(captured)
        captured.graph.replay()
        self._is_submitting = True
        self._replayed.append(captured)
        self._count += 1
        try:
            self.updater.submit(captured, query_ends, kv_lens)
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        finally:
            self._is_submitting = False

    def report(self) -> str:
        """Which replay the device may be in, and how far its updates are."""
        if not self._replayed:
            return "no graph was replayed"
        outstanding, issued = self.updater.outstanding(), self.updater.issued()
        number = self._count - max(outstanding - 1, 0)
        captured = self._replayed[-max(outstanding, 1)]
        text = f"replay {number} of this worker, {captured.name}: "
        if issued == captured.num_tasks and not outstanding:
            return text + f"all {issued} attention updates issued, all events recorded"
        return text + (
            f"{issued} of {captured.num_tasks} attention updates issued; layer {issued} waits for "
            f"its update and its event is not recorded ({outstanding} replays are outstanding)"
        )

    def close(self) -> None:
        """Issue what is outstanding, end the updater and let go of the graphs. Idempotent.

        Core keeps its engine, and so this object, to the end of the process.
        """
        self.updater.close()
        self._replayed.clear()
