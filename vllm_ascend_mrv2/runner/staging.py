# SPDX-License-Identifier: Apache-2.0
"""Host-to-device staging: all that a step sends, in one copy, on a stream of its own.

Without pinned memory a copy on the compute stream waits for everything queued there. Here the
step's host data is packed into one owned block, copied by one blocking copy on an otherwise idle
*input stream* into a ring of device slots, and handed to the compute stream by an event. Nothing
staged, nothing copied. What the bytes mean is the callers' business.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT_BYTES = 64  # of each item in the block; torch_npu's views need no more
_TORCH_DTYPE = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class _Slot:
    """A device block and the event after which its last readers are done."""

    def __init__(self, capacity_bytes: int, device: torch.device) -> None:
        self.memory = torch.empty(capacity_bytes, dtype=torch.uint8, device=device)
        self.read = torch.npu.Event()
        self.is_read_recorded = False


class StagingRing:
    """The one way of host data to the device during a step. Not thread-safe: the step thread's.

    A step is `begin_step`, any number of `put` and `then`, `flush` before the first reader is
    launched (again if more is put later), `end_step` after the last reader was launched.
    """

    def __init__(self, device: torch.device, capacity_bytes: int, num_slots: int) -> None:
        """capacity_bytes: of one step; num_slots: steps in flight plus one."""
        self.device = device
        self.input_stream = torch.npu.Stream(device)
        self._host = torch.empty(capacity_bytes, dtype=torch.uint8)
        self._host_np = self._host.numpy()
        self._slots = [_Slot(capacity_bytes, device) for _ in range(num_slots)]
        self._current = 0
        self._used = 0
        self._copied = 0
        self._apart: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._then: list[Callable[[], None]] = []
        self.is_open = False  # between begin_step and end_step
        # Called before a copy that may have to wait for the compute stream.
        self.before_wait: Callable[[str], None] = lambda what: None

    def begin_step(self) -> None:
        """Turn to the next slot. What earlier steps staged stays readable for their readers.

        A step that an exception ended before its `end_step` is ended here.
        """
        if self.is_open:
            self.flush()
            self.end_step()
        self.is_open = True
        self._current = (self._current + 1) % len(self._slots)
        self._used = self._copied = 0

    def put(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        """Stage a snapshot of `array`; return its device view, readable after `flush`.

        The view is valid until the slot comes round again: num_slots - 1 steps later. What does
        not fit in the step's block (long prompts) gets memory and a copy of its own.
        """
        source = np.ascontiguousarray(array)
        begin = -(-self._used // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        end = begin + source.nbytes
        if end > self._host_np.nbytes:
            return self._put_apart(source)
        self._host_np[begin:end] = source.reshape(-1).view(np.uint8)
        self._used = end
        view = self._slots[self._current].memory[begin:end]
        return view.view(_TORCH_DTYPE[source.dtype]).view(source.shape)

    def _put_apart(self, source: npt.NDArray[np.generic]) -> torch.Tensor:
        snapshot = torch.from_numpy(source.copy())
        # Memory of the input stream's own pool: the compute stream may still use what it freed.
        with torch.npu.stream(self.input_stream):
            memory = torch.empty_like(snapshot, device=self.device)
        memory.record_stream(torch.npu.current_stream(self.device))
        self._apart.append((memory, snapshot))
        return memory

    def then(self, action: Callable[[], None]) -> None:
        """Run `action` (device work on staged views) at the next flush, in the order given."""
        self._then.append(action)

    def flush(self) -> None:
        """Copy what was put since the last flush and order the compute stream after it."""
        if self._used > self._copied or self._apart:
            compute = torch.npu.current_stream(self.device)
            with torch.npu.stream(self.input_stream):
                self._copy_block()
                for memory, snapshot in self._apart:
                    memory.copy_(snapshot)
            self._apart.clear()
            compute.wait_event(self.input_stream.record_event())
        actions, self._then = self._then, []
        for action in actions:
            action()

    def _copy_block(self) -> None:
        if self._used == self._copied:
            return
        slot = self._slots[self._current]
        if slot.is_read_recorded:
            # Normally long past; right when it is not.
            if not slot.read.query():
                self.before_wait("a copy into a slot that is still read")
            self.input_stream.wait_event(slot.read)
        piece = slice(self._copied, self._used)
        slot.memory[piece].copy_(self._host[piece])
        self._copied = self._used

    def end_step(self) -> None:
        """Note that every reader of this step's data is queued on the compute stream."""
        if self._copied:
            slot = self._slots[self._current]
            slot.read.record(torch.npu.current_stream(self.device))
            slot.is_read_recorded = True
        self.is_open = False
