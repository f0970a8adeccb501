# SPDX-License-Identifier: Apache-2.0
"""How several ranks start and end: again and again, with one rank killed, with one that is slow."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.engine.server import Server
from tests.engine.test_faults import END_S, LIMIT_S, ask, ends
from tests.parallel.layouts import BY_NAME, Layout

pytestmark = pytest.mark.timeout(900)
SHARED_MEMORY = Path("/dev/shm")


def start(layout: Layout, checkpoint: Path, log: Path) -> Server:
    """A server whose steps may take LIMIT_S."""
    limit = {"VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S": str(LIMIT_S)}
    server = Server(layout.spec(checkpoint, **limit), log)
    server.start()
    return server


def ranks(server: Server) -> list[psutil.Process]:
    """The processes of the ranks (with one rank for an engine, the engines themselves)."""
    for title in ("VLLM::Worker", "VLLM::EngineCore"):
        found = [p for p in server.processes() if p.cmdline() and p.cmdline()[0].startswith(title)]
        if found:
            return found
    raise AssertionError(f"no ranks among {[p.cmdline() for p in server.processes()]}")


@pytest.mark.parametrize("name", ["tp2", "dp2", "pp2", "moe-dp2"])
def test_three_starts_in_a_row_leave_nothing(
    name: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    layout = BY_NAME[name]
    before = set(SHARED_MEMORY.iterdir())
    for number in range(3):
        server = start(layout, tiny(layout.family, "float32"), tmp_path / f"log-{number}")
        try:
            assert len(ranks(server)) == layout.ranks
            assert ask(server, 8) == "done"
            mine = server.shared_memory()
            assert server.stop() == 0
        finally:
            server.kill()
        assert not server.processes()
        assert not {path for path in mine if Path(path).exists()}
    left = {path for path in set(SHARED_MEMORY.iterdir()) - before if _is_ours(path)}
    assert not left


def _is_ours(path: Path) -> bool:
    """Whether nobody has it open: other programs of this machine use shared memory too."""
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return False
    for process in psutil.process_iter():
        try:
            if any(f" {inode} " in line for line in _maps(process)):
                return False
        except (psutil.Error, OSError):
            continue
    return path.name.startswith(("psm_", "vllm", "emu", "hccl"))


def _maps(process: psutil.Process) -> list[str]:
    return Path("/proc", str(process.pid), "maps").read_text().splitlines()


@pytest.mark.parametrize("name", ["tp2", "dp2", "pp2", "moe-dp2"])
def test_a_killed_rank_ends_the_server(
    name: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    layout = BY_NAME[name]
    server = start(layout, tiny(layout.family, "float32"), tmp_path / "log")
    try:
        mine = server.shared_memory()
        begin = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, server, 600) for _ in range(4)]
            time.sleep(1)
            ranks(server)[-1].send_signal(signal.SIGKILL)
            ended = [answer.result() for answer in answers]
        assert any(how != "done" for how in ended), ended
        assert time.monotonic() - begin < LIMIT_S + END_S
        ends(server)
        assert not {path for path in mine if Path(path).exists()}
    finally:
        server.kill()


def test_a_rank_that_is_slow_but_alive_loses_nothing(
    tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    layout = BY_NAME["tp2"]
    server = Server(layout.spec(tiny(layout.family, "float32")), tmp_path / "log")
    server.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, server, 100) for _ in range(4)]
            slow = ranks(server)[-1]
            for _ in range(5):
                slow.suspend()
                time.sleep(1)
                slow.resume()
                time.sleep(0.2)
            assert [answer.result() for answer in answers] == ["done"] * 4
        assert server.stop() == 0
    finally:
        server.kill()
