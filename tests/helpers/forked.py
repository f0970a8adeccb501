# SPDX-License-Identifier: Apache-2.0
"""Many short runs on fresh devices for the price of one `import torch`: for scripts, not for tests.

A script (`tests.helpers.emulated.run_script`) imports this, which imports torch, and forks a child
for each run. The script itself must never use the device: a device does not survive a fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import torch  # noqa: F401  imported once, before any fork


def _run_child(body: Callable[[], None], seed: int | None, slow_us: str) -> None:
    code = 1
    try:
        acl = ctypes.CDLL("libascendcl.so")
        acl.emu_set_schedule_seed(ctypes.c_uint64(seed or 0), int(seed is not None))
        assert acl.emu_set_slow_us(slow_us.encode()) == 0, slow_us
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def outcome(
    body: Callable[[], None],
    *,
    seed: int | None = None,
    slow_us: str = "",
    timeout_s: float = 20,
) -> str:
    """Run `body` on a fresh device: "done", "failed" (its traceback is on stderr) or "hangs".

    Args:
        body: What the child does.
        seed: Of the adversarial scheduler; None is off.
        slow_us: As ASCEND_EMU_SLOW_US; empty is off.
        timeout_s: After this the child counts as hanging and is killed.
    """
    sys.stdout.flush()  # else the child would write it too
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_child(body, seed, slow_us)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "done" if status == 0 else "failed"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
