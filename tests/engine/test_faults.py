# SPDX-License-Identifier: Apache-2.0
"""A device that stops, a rank that is killed, memory that runs out: clear errors, and no hang.

Each server has its own fault (ASCEND_EMU_INJECT) or loses its engine; clients are on it meanwhile.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import openai
import psutil
import pytest

from tests.engine.cases import Case
from tests.engine.server import MODEL_NAME, Server

pytestmark = pytest.mark.long  # three servers; test_watchdog.py has the short form
CASE = Case("llama")
LIMIT_S = 3
END_S = 40  # what is allowed beyond the watchdog's limit, on a busy machine


def ask(server: Server, new_tokens: int) -> str:
    """How a request ended: "done", or the error that the client was given."""
    try:
        answer = server.client().completions.create(
            model=MODEL_NAME,
            prompt="sea",
            max_tokens=new_tokens,
            temperature=0,
            timeout=LIMIT_S + END_S,
            extra_body={"ignore_eos": True},
        )
    except openai.APIStatusError as error:
        return f"{error.status_code}: {error.message}"
    except openai.APITimeoutError:
        pytest.fail("a request hangs")
    except openai.APIConnectionError:
        return "connection closed"
    assert answer.usage.completion_tokens == new_tokens
    return "done"


def start(checkpoint: Path, log: Path, **environment: str) -> Server:
    spec = CASE.spec(checkpoint)
    more = {"VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S": str(LIMIT_S), **environment}
    server = Server(replace(spec, environment=tuple(more.items())), log)
    server.start()
    return server


def ends(server: Server) -> None:
    """The server ends by itself with an error, and so does all that it started."""
    assert server.process is not None
    server.process.wait(LIMIT_S + END_S)
    deadline = time.monotonic() + END_S
    while server.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not server.processes()
    assert server.process.returncode != 0, "a supervisor would take this end for one asked for"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("stuck:graph_replay:60", f"a step did not end within {LIMIT_S} s"),
        ("error:graph_replay:60", "an injected fault"),
    ],
    ids=["stuck", "failing"],
)
def test_a_device_fault_ends_the_server_with_its_reason(
    fault: str, said: str, checkpoint_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    server = start(checkpoint_of(CASE), tmp_path / "log", ASCEND_EMU_INJECT=fault)
    try:
        assert ask(server, 4) == "done"
        with ThreadPoolExecutor(4) as pool:
            ended = list(pool.map(lambda n: ask(server, n), (4, 200, 200, 200)))
        assert ended[0] in ("done", ended[1])  # it may have finished before
        assert all(how != "done" for how in ended[1:])
        assert any("500" in how for how in ended), ended
        ends(server)
        assert said in server.log_tail(400)
    finally:
        server.kill()


def test_a_killed_engine_ends_the_server(
    checkpoint_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    server = start(checkpoint_of(CASE), tmp_path / "log")
    try:
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask, server, 600) for _ in range(2)]
            time.sleep(0.5)
            engine = [p for p in server.processes() if "EngineCore" in "".join(p.cmdline())]
            assert len(engine) == 1
            psutil.Process(engine[0].pid).send_signal(signal.SIGKILL)
            assert all(answer.result() != "done" for answer in answers)
        ends(server)
    finally:
        server.kill()


def test_a_device_out_of_memory_is_an_error_for_the_request(
    checkpoint_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    """From the third decode step on nothing more can be allocated; what fits goes on."""
    server = start(checkpoint_of(CASE), tmp_path / "log", ASCEND_EMU_INJECT="oom:graph_replay:3")
    try:
        assert ask(server, 20) == "done"
        assert ask(server, 20) == "done"
        with pytest.raises((openai.APIStatusError, openai.APIConnectionError)) as failed:
            server.client().completions.create(
                model=MODEL_NAME,
                prompt=[5] * 600,
                max_tokens=1,
                timeout=LIMIT_S + END_S,
                extra_body={"prompt_logprobs": 20},
            )
        assert not isinstance(failed.value, openai.APITimeoutError)
        ends(server)
        assert "out of memory" in server.log_tail(400)
    finally:
        server.kill()
