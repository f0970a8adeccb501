# SPDX-License-Identifier: Apache-2.0
"""What is left behind when several ranks have ended: processes, shared memory, devices."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from tests.engine.server import Server

END_S = 60  # several ranks on a busy machine; core gives its workers 5 s before it kills them
# Ray's helpers look every few seconds whether it is gone.
GONE_S = 30
RANKS = ("VLLM::Worker", "ray::RayWorkerProc", "VLLM::EngineCore")
SHARED_MEMORY = Path("/dev/shm")


def title(process: psutil.Process) -> str:
    """The first word of its command line, which vLLM and Ray set; "" where it has just ended."""
    try:
        return next(iter(process.cmdline()), "")
    except psutil.Error:
        return ""


def ranks(server: Server) -> list[psutil.Process]:
    """The processes of the ranks (with one rank for an engine, the engines themselves)."""
    processes = server.processes()
    for kind in RANKS:
        if found := [process for process in processes if title(process).startswith(kind)]:
            return found
    raise AssertionError(f"no ranks among {[title(process) for process in processes]}")


def assert_gone(server: Server, shared_memory: Iterable[str]) -> None:
    """No process of the server is there after GONE_S, and none of this shared memory."""
    deadline = time.monotonic() + GONE_S
    while (left := server.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, [title(process) for process in left]
    assert not [path for path in shared_memory if Path(path).exists()]


def stops_and_leaves_nothing(server: Server) -> None:
    """Ask it to stop: it ends with 0, and all that it started and shared is gone by itself."""
    assert server.process is not None
    before = set(SHARED_MEMORY.iterdir())
    mine = server.shared_memory()
    assert server.end(timeout_s=END_S) == 0, server.log_tail()
    assert_gone(server, mine)
    assert not {path for path in set(SHARED_MEMORY.iterdir()) - before if _is_ours(path)}


def _is_ours(path: Path) -> bool:
    """Whether it is of a kind that ranks make and nobody has it open.

    Other programs of this machine use shared memory too.
    """
    if not path.name.startswith(("psm_", "vllm", "emu", "hccl")):
        return False
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return False
    for process in psutil.process_iter():
        try:
            maps = Path("/proc", str(process.pid), "maps").read_text()
        except OSError:
            continue
        if any(f" {inode} " in line for line in maps.splitlines()):
            return False
    return True
