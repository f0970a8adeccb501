# SPDX-License-Identifier: Apache-2.0
"""Takes the name of a Ray worker's shared memory away once all its readers have opened it.

Why: core's Ray executor ends its workers by killing them, and Ray kills what they have started,
Python's resource tracker too; nobody is left then who would remove their message queues, 500 MB
in /dev/shm. Memory without a name goes with the last process that has it open.
Core versions: 0.30 to 0.33. Goes when core's Ray workers end by themselves. Undo with
`uninstall()`.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

_original: Any = None


def install() -> None:
    """For this process: of each queue that it writes, when all readers are there. Idempotent."""
    global _original
    if _original is not None:
        return
    _original = MessageQueue.wait_until_ready

    def wait_until_ready(self: MessageQueue) -> None:
        _original(self)
        buffer = self.buffer  # None: all readers are on other machines
        if self._is_writer and buffer is not None and buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False  # else it would be removed again, under another's name

    MessageQueue.wait_until_ready = wait_until_ready


def uninstall() -> None:
    """Give core's method back."""
    global _original
    if _original is not None:
        MessageQueue.wait_until_ready = _original
        _original = None
