# SPDX-License-Identifier: Apache-2.0
"""Whether a process that a test has started, or that was started by one, is still there."""

from __future__ import annotations

import psutil


def is_running(pid: int) -> bool:
    """False also for what is dead, and not yet collected by whoever adopted it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
