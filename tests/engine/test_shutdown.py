# SPDX-License-Identifier: Apache-2.0
"""A signal ends a busy server in STOP_TIMEOUT_S and leaves no process and no shared memory.

With --shutdown-timeout its requests are answered first. At core's default of 0 the engine is killed
under them; then core 0.32 waits, on any platform, until clients have closed their connections.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.engine.cases import Case
from tests.engine.server import MODEL_NAME, STOP_TIMEOUT_S, Server

CASE = Case("llama")
NEW_TOKENS = 200


class Client:
    """A streamed request, in a thread of the caller's. `begun` is set at its first piece."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._socket: socket.socket | None = None
        self._left = False

    def stream(self, server: Server) -> bool:
        """Whether it was answered in full."""
        request = {"model": MODEL_NAME, "prompt": "sea", "max_tokens": NEW_TOKENS, "stream": True}
        with httpx.Client(timeout=60) as client:
            try:
                with client.stream(
                    "POST", f"{server.url}/v1/completions", json={**request, "ignore_eos": True}
                ) as answer:
                    self._socket = answer.extensions["network_stream"].get_extra_info("socket")
                    for line in answer.iter_lines():
                        self.begun.set()
                        if '"finish_reason":"length"' in line:
                            return True
            except httpx.TransportError:
                assert self._left, "the connection broke"
        return False

    def leave(self) -> None:
        """Close the connection, whatever is on it."""
        self._left = True
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("how", "shutdown_timeout_s"),
    [(signal.SIGTERM, 15), pytest.param(signal.SIGINT, 0, marks=pytest.mark.long)],
    ids=["SIGTERM-drains", "SIGINT-aborts"],
)
def test_a_signal_ends_a_busy_server_and_leaves_nothing(
    how: signal.Signals,
    shutdown_timeout_s: int,
    checkpoint_of: Callable[[Case], Path],
    tmp_path: Path,
) -> None:
    spec = CASE.spec(checkpoint_of(CASE))
    more = ("--shutdown-timeout", str(shutdown_timeout_s))
    server = Server(replace(spec, arguments=(*spec.arguments, *more)), tmp_path / "server.log")
    server.start()
    try:
        assert server.process is not None
        assert len(server.processes()) >= 2, "an engine process was expected beside the server"
        shared_memory = server.shared_memory()
        client = Client()
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(client.stream, server)
            assert client.begun.wait(60), server.log_tail()
            begin = time.monotonic()
            server.process.send_signal(how)
            if shutdown_timeout_s == 0:
                client.leave()
            server.process.wait(STOP_TIMEOUT_S)
            assert answered.result() == (shutdown_timeout_s > 0)
        left = server.processes()
        while left and time.monotonic() - begin < STOP_TIMEOUT_S:
            time.sleep(0.1)
            left = server.processes()
        assert not left, f"still there: {[process.cmdline() for process in left]}"
        assert not {path for path in shared_memory if Path(path).exists()}
        engine = [line for line in server.log_tail(300).splitlines() if "EngineCore" in line]
        assert not [line for line in engine if "Traceback" in line], server.log_tail(200)
        assert not server.is_healthy()
    finally:
        server.kill()
