# SPDX-License-Identifier: Apache-2.0
"""How several ranks start and end: again and again, with one that is slow, with one killed.

With the server of test_layouts.py these are three starts of TP 2 in each mode.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.server import Server
from tests.engine.test_faults import END_S, LIMIT_S, ask, ends
from tests.parallel.ends import assert_gone, ranks, stops_and_leaves_nothing
from tests.parallel.layouts import BY_NAME, MODES

pytestmark = pytest.mark.timeout(900)
CLIENTS = 4


def start(
    name: str, mode: str, tiny: Callable[[str, str], Path], log: Path, **environment: str
) -> Server:
    layout = BY_NAME[name]
    checkpoint = tiny(layout.family, "float32")
    server = Server(layout.spec(checkpoint, *MODES[mode], **environment), log)
    server.start()
    return server


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["tp2"])
def test_a_rank_that_is_slow_but_alive_loses_nothing(
    name: str, mode: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The second start. One rank stands still for a second, five times."""
    server = start(name, mode, tiny, tmp_path / "log")
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = [pool.submit(ask, server, 100) for _ in range(CLIENTS)]
            slow = ranks(server)[-1]
            for _ in range(5):
                slow.suspend()
                time.sleep(1)
                slow.resume()
                time.sleep(0.2)
            assert [answer.result() for answer in answers] == ["done"] * CLIENTS
        stops_and_leaves_nothing(server)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("tp2", "graph"),
        ("tp2", "eager"),
        ("dp2", "graph"),
        ("pp2", "graph"),
        ("moe-dp2", "graph"),
        ("tp2-ray", "graph"),
    ],
)
def test_a_killed_rank_ends_the_server(
    name: str, mode: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The third start. Every client is told, the server ends with an error, nothing stays."""
    limit = {"VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S": str(LIMIT_S)}
    server = start(name, mode, tiny, tmp_path / "log", **limit)
    try:
        assert ask(server, 8) == "done"
        mine = server.shared_memory()
        begin = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = [pool.submit(ask, server, 600) for _ in range(CLIENTS)]
            time.sleep(1)
            ranks(server)[-1].send_signal(signal.SIGKILL)
            ended = [answer.result() for answer in answers]
        assert all(how != "done" for how in ended), ended
        assert time.monotonic() - begin < LIMIT_S + END_S
        ends(server)
        assert_gone(server, mine)
    finally:
        server.kill()
