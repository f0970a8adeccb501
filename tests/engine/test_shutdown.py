# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGINT end a server, busy or idle, in STOP_TIMEOUT_S, and leave nothing of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.engine.cases import Case
from tests.engine.server import MODEL_NAME, STOP_TIMEOUT_S, Server

CASE = Case("llama")


def start_long_request(server: Server) -> None:
    """Returns when its first piece has come; the server is busy with the rest."""
    request = {"model": MODEL_NAME, "prompt": "sea", "max_tokens": 650, "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**request, "ignore_eos": True}, timeout=60
    ) as stream:
        for line in stream.iter_lines():
            if line:
                break
        try:
            for _ in stream.iter_lines():
                pass
        except httpx.HTTPError:
            return  # cut by the end of the server, as it should be


@pytest.mark.parametrize(
    ("how", "is_busy"),
    [(signal.SIGTERM, True), (signal.SIGINT, False)],
    ids=["SIGTERM-busy", "SIGINT-idle"],
)
def test_a_signal_ends_the_server_and_leaves_nothing(
    how: signal.Signals,
    is_busy: bool,
    checkpoint_of: Callable[[Case], Path],
    tmp_path: Path,
) -> None:
    server = Server(CASE.spec(checkpoint_of(CASE)), tmp_path / "server.log")
    server.start()
    try:
        assert server.process is not None
        assert len(server.processes()) >= 2, "an engine process was expected beside the server"
        shared_memory = server.shared_memory()
        with ThreadPoolExecutor(1) as pool:
            if is_busy:
                pool.submit(start_long_request, server)
                wait_until_busy(server)
            begin = time.monotonic()
            server.process.send_signal(how)
            server.process.wait(STOP_TIMEOUT_S)
        left = server.processes()
        while left and time.monotonic() - begin < STOP_TIMEOUT_S:
            time.sleep(0.1)
            left = server.processes()
        assert not left, f"still there: {[process.cmdline() for process in left]}"
        assert not {path for path in shared_memory if Path(path).exists()}
        assert "Traceback" not in server.log_tail(200), server.log_tail(200)
        assert not server.is_healthy()
    finally:
        server.kill()


def wait_until_busy(server: Server) -> None:
    for _ in range(200):
        if server.metric("vllm:num_requests_running") > 0:
            return
        time.sleep(0.02)
    raise AssertionError(f"no request is running:\n{server.log_tail()}")
