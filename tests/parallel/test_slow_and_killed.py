# SPDX-License-Identifier: Apache-2.0
"""One of several ranks stands still for a while, or is killed, while clients are served; or the
server before them is killed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.server import Server
from tests.engine.test_exactness import complete
from tests.engine.test_faults import END_S, LIMIT_S, LONG, Stream, ask, ends
from tests.engine.test_killed_server import LIMIT_S as LIMIT_AFTER_KILL_S
from tests.engine.test_killed_server import kill_and_look
from tests.parallel.ends import ranks, stops_and_leaves_nothing
from tests.parallel.layouts import BY_NAME, MODES

pytestmark = pytest.mark.timeout(900)
CLIENTS = 4
PAUSES = 5
PAUSE_S = 1
# Two of Ray's agents, seen for over 40 s after all else had gone where other tests ran beside.
RAYS_END_S = 150
ANSWER = 250  # tokens: longer than all pauses
KINDS = [
    ("tp2", "graph"),
    ("tp2", "eager"),
    ("dp2", "graph"),
    ("pp2", "graph"),
    ("moe-dp2", "graph"),
    ("tp2-ray", "graph"),
]


def start(
    name: str, mode: str, tiny: Callable[[str, str], Path], log: Path, **environment: str
) -> Server:
    layout = BY_NAME[name]
    checkpoint = tiny(layout.family, "float32")
    server = Server(layout.spec(checkpoint, *MODES[mode], **environment), log)
    server.start()
    return server


@pytest.mark.parametrize(("name", "mode"), KINDS)
def test_a_rank_that_is_slow_but_alive_loses_nothing(
    name: str, mode: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """It stands still for a second, five times, while requests run: the tokens stay the same."""
    server = start(name, mode, tiny, tmp_path / "log")
    asked = [[5 + number, 9, 7] for number in range(CLIENTS)]
    try:
        undisturbed = complete(server, asked, ANSWER)
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(complete, server, asked, ANSWER)
            while server.metric("vllm:num_requests_running") == 0:
                assert not answers.done()
            slow = ranks(server)[-1]
            for _ in range(PAUSES):
                slow.suspend()
                time.sleep(PAUSE_S)
                assert not answers.done()
                slow.resume()
                time.sleep(PAUSE_S / 20)
            assert answers.result() == undisturbed
        stops_and_leaves_nothing(server)
    finally:
        server.kill()


@pytest.mark.parametrize(("name", "mode"), KINDS)
def test_a_killed_rank_ends_the_server(
    name: str, mode: str, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Every client is told, in time, in an answer or in its stream; the server ends with an error,
    and nothing stays.
    """
    limit = {"VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S": str(LIMIT_S)}
    server = start(name, mode, tiny, tmp_path / "log", **limit)
    try:
        streams = [Stream(server) for _ in range(CLIENTS // 2)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            streamed = [pool.submit(stream.run) for stream in streams]
            answers = [pool.submit(ask, server, LONG) for _ in range(CLIENTS // 2)]
            assert all(stream.begun.wait(END_S) for stream in streams)
            shared_memory = server.shared_memory()
            ranks(server)[-1].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            told = [answer.result() for answer in [*streamed, *answers]]
        assert time.monotonic() - killed < LIMIT_S + END_S
        assert all("It said: " in how or "It left no reason" in how for how in told), told
        assert all(how.startswith("500: ") for how in told[len(streamed) :]), told
        ends(server, shared_memory, within_s=RAYS_END_S if "ray" in name else END_S)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("name", "busy"),
    [
        *(("tp2", True), ("tp2", False), ("dp2", True), ("dp2", False)),
        *(("moe-dp2", True), ("tp2-ray", True)),
    ],
)
def test_a_killed_server_leaves_nothing(
    name: str, busy: bool, tiny: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Its ranks, their engines, and with data parallelism its API servers and their coordinator."""
    server = start(name, "graph", tiny, tmp_path / "log")
    kill_and_look(server, busy=busy, within_s=RAYS_END_S if "ray" in name else LIMIT_AFTER_KILL_S)
