# SPDX-License-Identifier: Apache-2.0
"""A signal ends a busy server in STOP_TIMEOUT_S and leaves no process, shared memory or file.

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
from tests.engine.conftest import ServerPool
from tests.engine.server import MODEL_NAME, STOP_TIMEOUT_S, Server

CASE = Case("qwen3", is_tight=True)
pytestmark = CASE.group
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


def test_sigterm_drains_a_busy_server_and_leaves_nothing(
    servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    """The last of this server's tests: it ends it."""
    check_end(servers.get(CASE.spec(checkpoint_of(CASE))), signal.SIGTERM, drains=True)


@pytest.mark.long
def test_sigint_aborts_a_busy_server_and_leaves_nothing(
    servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    spec = CASE.spec(checkpoint_of(CASE))
    at_once = replace(spec, arguments=(*spec.arguments, "--shutdown-timeout", "0"))
    check_end(servers.get(at_once), signal.SIGINT, drains=False)


def check_end(server: Server, how: signal.Signals, *, drains: bool) -> None:
    """Signal `server` while it answers a request, and look at what is left of it."""
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
            if not drains:
                client.leave()
            server.process.wait(STOP_TIMEOUT_S)
            assert answered.result() == drains
        server.assert_nothing_is_left(shared_memory, begin + STOP_TIMEOUT_S - time.monotonic())
        engine = [line for line in server.log_tail(300).splitlines() if "EngineCore" in line]
        assert not [line for line in engine if "Traceback" in line], server.log_tail(200)
        assert not server.is_healthy()
    finally:
        server.kill()
