# SPDX-License-Identifier: Apache-2.0
"""How the tasks of a replay are updated: by Python in the calling thread, or by the hot path.

Python's way is the reference and the fallback. The hot path (csrc/hotpath) does the same from
prepared calls on a thread of its own, so that the step thread only hands over the lengths. Which
one a process takes is decided here, once. Order with replays is the protocol's (replay.py).
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from vllm_ascend_mrv2 import builds, envs
from vllm_ascend_mrv2.graph.tasks import TaskEvent, TaskMismatchError

if TYPE_CHECKING:
    from vllm_ascend_mrv2.graph.capture import CapturedGraph

LIBRARY = "libascend_mrv2_hotpath.so"
HOW_TO_BUILD = "build it with `vllm-ascend-mrv2 hotpath build`"


class UpdateError(RuntimeError):
    """A task update failed: no result of that replay or a later one is right."""


@dataclass(frozen=True)
class UpdatesVerdict:
    """Whether the hot path is taken, and why. library: its file, where it is."""

    library: str | None
    reason: str


def decide_updates(switch: str, built: str | None, why_not: str) -> UpdatesVerdict:
    """Pure. switch: HOTPATH's value; built: the library for this stack, or None and why not."""
    if switch == "off":
        return UpdatesVerdict(None, f"{envs.HOTPATH.name}=off")
    if built is None:
        return UpdatesVerdict(None, f"{why_not}; {HOW_TO_BUILD}")
    return UpdatesVerdict(built, "all updates of a replay in one call, off the step thread")


@functools.cache
def verdict() -> UpdatesVerdict:
    """This process's. Looks for the library; does not load it."""
    library, why_not = builds.find(builds.HOTPATH)
    return decide_updates(
        envs.HOTPATH.read(), None if library is None else str(library / "lib64" / LIBRARY), why_not
    )


class Updater(Protocol):
    """Updates the tasks of one worker's replays, in the order of their submission."""

    def prepare(self, captured: CapturedGraph) -> None:
        """To be called before a replay. Raises TaskMismatchError if tasks are missing."""

    def submit(
        self, captured: CapturedGraph, query_ends: list[int], kv_lens: Sequence[int]
    ) -> None:
        """To be called right after the replay, on its stream. Raises UpdateError."""

    def check(self) -> None:
        """Raises UpdateError if an update failed."""

    def settle(self, timeout_s: float) -> bool:
        """Wait, for the host only, until every update submitted was issued. False: too late."""

    def outstanding(self) -> int:
        """Replays whose updates were submitted and not all issued."""

    def issued(self) -> int:
        """Updates issued of the oldest such replay, or of the last."""

    def close(self) -> None:
        """Issue what was submitted, end and let go of the graphs. Idempotent."""


class Updates(Protocol):
    """One way of updating: the events it needs in a capture, and an updater per worker."""

    def new_event(self) -> TaskEvent: ...

    def updater(self, device: torch.device) -> Updater: ...


def _update_stream(device: torch.device) -> torch.npu.Stream:
    """A stream past torch_npu's task queue: each update is with the runtime when it returns."""
    return torch.npu.SyncLaunchStream(device)


class PythonUpdates:
    """The reference: a loop over the layers in the calling thread."""

    def new_event(self) -> TaskEvent:
        return torch.npu.ExternalEvent()

    def updater(self, device: torch.device) -> Updater:
        return PythonUpdater(device)


class PythonUpdater:
    """Issues every update before `submit` returns: never outstanding but inside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _update_stream(device)
        self._previous_done: torch.npu.Event | None = None
        self._issued = 0
        self._failure = ""

    def prepare(self, captured: CapturedGraph) -> None:
        captured.tasks.require(captured.num_tasks)

    def submit(
        self, captured: CapturedGraph, query_ends: list[int], kv_lens: Sequence[int]
    ) -> None:
        previous, self._previous_done = self._previous_done, torch.npu.Event()
        self._previous_done.record(torch.npu.current_stream(self._device))
        try:
            if previous is not None:
                # Recorded before the replay, whose submission emptied torch_npu's queue.
                self._stream.wait_event(previous)
            self._issued = 0
            captured.tasks.update(self._stream, query_ends, kv_lens, captured.num_tasks)
            self._issued = captured.num_tasks
        except BaseException as error:
            self._failure = f"an update of {captured.name} failed: {error}"
            captured.tasks.let_go(self._stream)
            raise UpdateError(self._failure) from error

    def check(self) -> None:
        if self._failure:
            raise UpdateError(self._failure)

    def settle(self, timeout_s: float) -> bool:
        return True

    def outstanding(self) -> int:
        return 0

    def issued(self) -> int:
        return self._issued

    def close(self) -> None:
        """Nothing is pending."""


class HotPathUpdates:
    """The compiled one. Raises OSError where the library cannot be loaded."""

    def __init__(self, library: str) -> None:
        torch.classes.load_library(library)
        self.classes: Any = torch.classes.ascend_mrv2

    def new_event(self) -> TaskEvent:
        return HotPathEvent(self.classes.ExternalEvent())

    def updater(self, device: torch.device) -> Updater:
        return HotPathUpdater(self.classes, device)


class HotPathEvent:
    """The hot path's external event. `npu_stream` empties torch_npu's queue into the stream."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self, stream: torch.npu.Stream) -> None:
        self.event.wait(stream.npu_stream)

    def reset(self, stream: torch.npu.Stream) -> None:
        self.event.reset(stream.npu_stream)

    def record(self, stream: torch.npu.Stream) -> None:
        self.event.record(stream.npu_stream)


class HotPathUpdater:
    """Hands a replay's lengths to a C++ thread, which also orders it after the replay before."""

    def __init__(self, classes: Any, device: torch.device) -> None:
        self._classes = classes
        self._stream = stream = _update_stream(device)
        self.thread = classes.Updater(
            stream.stream_id, stream.device_index, stream.device_type, stream.npu_stream
        )
        self._programs: dict[CapturedGraph, Any] = {}
        # At the end of the process it is joined before the runtime goes.
        self._finalizer = weakref.finalize(self, self.thread.close)

    def prepare(self, captured: CapturedGraph) -> None:
        captured.tasks.require(captured.num_tasks)
        if captured not in self._programs:
            self._programs[captured] = self._program(captured)

    def _program(self, captured: CapturedGraph) -> Any:
        program = self._classes.TaskProgram(
            "npu::npu_fused_infer_attention_score",
            "out",
            "actual_seq_lengths",
            "actual_seq_lengths_kv",
        )
        for task in captured.tasks.tasks:
            if not isinstance(task.may_run, HotPathEvent):
                raise TaskMismatchError(f"{captured.name} was captured for other updates")
            arguments = task.call.out_arguments(task.output, task.softmax_lse, task.workspace)
            program.add(arguments, _address(task.handle.task_group), task.may_run.event)
        return program

    def submit(
        self, captured: CapturedGraph, query_ends: list[int], kv_lens: Sequence[int]
    ) -> None:
        program = self._programs[captured]
        try:
            self.thread.submit(program, query_ends, list(kv_lens), captured.num_tasks)
        except RuntimeError as error:
            raise UpdateError(str(error)) from error

    def check(self) -> None:
        try:
            self.thread.check()
        except RuntimeError as error:
            raise UpdateError(str(error)) from error

    def settle(self, timeout_s: float) -> bool:
        return bool(self.thread.settle(int(timeout_s * 1000)))

    def outstanding(self) -> int:
        return int(self.thread.outstanding())

    def issued(self) -> int:
        return int(self.thread.issued())

    def close(self) -> None:
        self._finalizer()
        self._programs.clear()  # they hold the KV cache and the graphs' memory


def _address(capsule: Any) -> int:
    """What a nameless PyCapsule points to: so pybind shows the runtime's handles."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, None))


@functools.cache
def chosen() -> Updates:
    """What `verdict` chose, loaded."""
    library = verdict().library
    return PythonUpdates() if library is None else HotPathUpdates(library)
