# SPDX-License-Identifier: Apache-2.0
"""The emulator seen from a test: the C ABI through ctypes, counters, gates, scripts in a process.

Nothing here stands in for the device. A `Gate` holds a stream with a device operation that waits
for a word of device memory, so that a test can look while work is queued, without timing.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
import textwrap
from types import TracebackType
from typing import Any

import torch

from tests.helpers.fork_server import ForkServer

WAIT_GEQ = 0  # ACL_STREAM_WAIT_VALUE_GEQ
H2D = 1  # ACL_MEMCPY_HOST_TO_DEVICE
D2H = 2  # ACL_MEMCPY_DEVICE_TO_HOST


@functools.cache
def acl() -> ctypes.CDLL:
    """libascendcl, the one that torch_npu uses."""
    library = ctypes.CDLL("libascendcl.so")
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    library.emu_counters_json.restype = ctypes.c_size_t
    library.emu_counters_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.emu_step_begin.argtypes = [ctypes.c_char_p]
    library.emu_pinned_allocations.restype = ctypes.c_uint64
    library.emu_version.restype = ctypes.c_char_p
    return library


def recent_error() -> str:
    """The calling thread's error message; reading clears it."""
    message = acl().aclGetRecentErrMsg()
    return message.decode() if message else ""


def check(code: int) -> None:
    """Raise RuntimeError with the runtime's message unless `code` is 0."""
    if code:
        raise RuntimeError(f"error {code}: {recent_error()}")


def handle(stream: torch.npu.Stream | None) -> ctypes.c_void_p:
    """The stream's handle for ctypes; None is the current stream."""
    return ctypes.c_void_p((stream or torch.npu.current_stream()).npu_stream)


class Gate:
    """A stream blocked on the device until `open()`.

    Usage: `with Gate() as gate: gate.close(); ...; gate.open()`. Leaving the block opens it, so
    that a failing test does not hang. All work of the device so far is waited for on entry.
    """

    def __init__(self) -> None:
        self._round = 0

    def __enter__(self) -> Gate:
        self._word = torch.zeros(1, dtype=torch.int64, device="npu")
        torch.npu.synchronize()
        self._opener = ctypes.c_void_p()
        check(acl().aclrtCreateStream(ctypes.byref(self._opener)))
        return self

    def close(self, stream: torch.npu.Stream | None = None) -> None:
        """Block `stream` (default: the current one) from here on."""
        word = ctypes.c_void_p(self._word.data_ptr())
        target = ctypes.c_uint64(self._round + 1)
        check(acl().aclrtValueWait(word, target, WAIT_GEQ, handle(stream)))

    def open(self) -> None:
        """Let every stream that was blocked go on."""
        self._round += 1
        word = ctypes.c_void_p(self._word.data_ptr())
        check(acl().aclrtValueWrite(word, ctypes.c_uint64(self._round), 0, self._opener))
        check(acl().aclrtSynchronizeStream(self._opener))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.open()
        torch.npu.synchronize()
        check(acl().aclrtDestroyStream(self._opener))


def counters() -> dict[str, Any]:
    """The whole snapshot; csrc/emulator/runtime/counters.h describes it."""
    size = acl().emu_counters_json(None, 0) + (1 << 16)
    buffer = ctypes.create_string_buffer(size)
    acl().emu_counters_json(buffer, size)
    snapshot: dict[str, Any] = json.loads(buffer.value)
    return snapshot


def reset_counters() -> None:
    """Start all counters from zero."""
    acl().emu_counters_reset()


class Step:
    """`with Step("label"):` marks a step on the calling thread."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __enter__(self) -> Step:
        assert acl().emu_step_begin(self.label.encode()) == 0, "steps do not nest"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert acl().emu_step_end() == 0


# Opens the device without torch, whose import costs seconds: for scripts that need only the C ABI.
BARE = """
import ctypes, os, sys
acl = ctypes.CDLL("libascendcl.so")
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
"""


# For a process whose findings the test itself looks at: they are not the session's
# (tests/conftest.py).
OWN_FINDINGS = {"ASCEND_EMU_CHECK": "report", "ASCEND_EMU_CHECK_REPORT": ""}

_FORK_SERVER = ForkServer()


def run_script(
    script: str, timeout_s: float = 120, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a process of its own, for what breaks a device or a process.

    `environment` is added to this process's; None removes a variable. Lines that all tests of a
    kind begin with may precede an indented script. It runs in a fork of an interpreter that has
    imported torch, or in a new one: `BARE` scripts, and where it sets what the emulator reads when
    it is loaded.
    """
    env = dict(os.environ)
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    prefix = BARE if script.startswith(BARE) else ""
    body = prefix + textwrap.dedent(script.removeprefix(BARE))
    read_at_load = any(
        env.get(name) != os.environ.get(name) for name in environment if name.startswith("ASCEND_")
    )
    if not prefix and not read_at_load:
        return _FORK_SERVER.run(body, env, timeout_s)
    return subprocess.run(
        [sys.executable, "-c", body],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def passes(script: str, timeout_s: float = 120, **environment: str | None) -> str:
    """`run_script`, which must exit with 0; its output."""
    result = run_script(script, timeout_s, **environment)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout
