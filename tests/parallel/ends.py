# SPDX-License-Identifier: Apache-2.0
"""How several ranks end, and which processes they are."""

from __future__ import annotations

import psutil

from tests.engine.server import Server, title

END_S = 60  # several ranks on a busy machine; core gives its workers 5 s before it kills them
# Ray's helpers look every few seconds whether it is gone.
GONE_S = 30
RANKS = ("VLLM::Worker", "ray::RayWorkerProc", "VLLM::EngineCore")


def ranks(server: Server) -> list[psutil.Process]:
    """The processes of the ranks (with one rank for an engine, the engines themselves)."""
    processes = server.processes()
    for kind in RANKS:
        if found := [process for process in processes if title(process).startswith(kind)]:
            return found
    raise AssertionError(f"no ranks among {[title(process) for process in processes]}")


def stops_and_leaves_nothing(server: Server) -> None:
    """Ask it to stop: it ends with 0, and all that it started and shared is gone by itself."""
    shared_memory = server.shared_memory()
    assert server.end(timeout_s=END_S) == 0, server.log_tail()
    server.assert_nothing_is_left(shared_memory, within_s=GONE_S)
