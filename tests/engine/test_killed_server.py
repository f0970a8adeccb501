# SPDX-License-Identifier: Apache-2.0
"""A server that is killed, as for memory, leaves no process, shared memory or file: whatever it
started ends by itself. tests/parallel has the same with several ranks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.cases import Case
from tests.engine.conftest import ServerPool
from tests.engine.server import Server, title
from tests.engine.test_faults import Stream
from vllm_ascend_mrv2.orphans import ENDS_WITHIN_S

CASE = Case("qwen3")
pytestmark = CASE.group
SAID = "which started it, is gone"
LIMIT_S = ENDS_WITHIN_S + 10  # on a busy machine


def kill_and_look(server: Server, *, busy: bool, within_s: float = LIMIT_S) -> None:
    """Kill -9 what `vllm serve` is, while it answers a request or not, and look at what is left."""
    try:
        assert any(title(process).startswith("VLLM::EngineCore") for process in server.processes())
        with ThreadPoolExecutor(1) as pool:
            if busy:
                stream = Stream(server)
                answer = pool.submit(stream.run)
                assert stream.begun.wait(60), server.log_tail()
                assert not answer.done()
            shared_memory = server.shared_memory()
            server.end(signal.SIGKILL)
        server.assert_nothing_is_left(shared_memory, within_s)
        assert SAID in server.log_tail(500)
    finally:
        server.kill()


@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_killed_server_leaves_nothing(
    busy: bool, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    """The last of this server's tests: it ends it."""
    kill_and_look(servers.get(CASE.spec(checkpoint_of(CASE))), busy=busy)
