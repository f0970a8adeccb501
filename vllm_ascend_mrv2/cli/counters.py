# SPDX-License-Identifier: Apache-2.0
"""The emulated device's counters, read in the process that uses it.

What is counted, and what a step is, stands in csrc/emulator/runtime/counters.h.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class NotEmulatedError(RuntimeError):
    """The loaded device library is not the emulated one."""


@functools.cache
def library() -> ctypes.CDLL:
    """The libascendcl that torch_npu uses. Raises NotEmulatedError for a real one, or none."""
    try:
        loaded = ctypes.CDLL("libascendcl.so")
    except OSError as error:
        raise NotEmulatedError(f"no device library is on the loader path: {error}") from error
    if not hasattr(loaded, "emu_version"):
        raise NotEmulatedError("the device library is a real one; it counts nothing")
    loaded.emu_counters_json.restype = ctypes.c_size_t
    loaded.emu_counters_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    loaded.emu_step_begin.argtypes = [ctypes.c_char_p]
    loaded.emu_pinned_allocations.restype = ctypes.c_uint64
    return loaded


def snapshot() -> dict[str, Any]:
    """All counters of this process."""
    # Other threads go on counting between the two calls.
    size = library().emu_counters_json(None, 0) + (1 << 16)
    buffer = ctypes.create_string_buffer(size)
    library().emu_counters_json(buffer, size)
    counted: dict[str, Any] = json.loads(buffer.value)
    return counted


def reset() -> None:
    """Start all counters and steps from zero."""
    library().emu_counters_reset()


@contextmanager
def step(label: str) -> Iterator[None]:
    """What happens within this block counts under `label`, by this thread and by others."""
    if library().emu_step_begin(label.encode()) != 0:
        raise RuntimeError(f"step {label!r} began inside another step of this thread")
    try:
        yield
    finally:
        library().emu_step_end()
