# SPDX-License-Identifier: Apache-2.0
"""A device that stops, a rank that is killed, memory that runs out: each client is told what
happened, in time; what can finish does; and nothing hangs.

Faults are the emulator's (ASCEND_EMU_INJECT), each in a server of its own; the killed engine is the
last thing that a shared server sees.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from tests.engine.cases import SMOLLM2, Case
from tests.engine.conftest import ServerPool
from tests.engine.server import MODEL_NAME, Server, title

CASE = Case("llama")
LIMIT_S = 3
END_S = 40  # what is allowed beyond the watchdog's limit, on a busy machine
LONG = 650  # tokens of a request that no fault below lets finish
FAULT_AT = 400  # the replay with the fault; every one gives each request a token


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


class Stream:
    """A request whose tokens are watched as they come. `begun` is set at the first."""

    def __init__(self, server: Server) -> None:
        self.begun = threading.Event()
        self.silent_s = 0.0  # between its last token and its error
        self._server = server

    def run(self) -> str:
        """As `ask`, for LONG tokens."""
        last = time.monotonic()
        try:
            for _ in self._server.client().completions.create(
                model=MODEL_NAME,
                prompt="sea",
                max_tokens=LONG,
                temperature=0,
                timeout=LIMIT_S + END_S,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                last = time.monotonic()
                self.begun.set()
        except openai.APITimeoutError:
            pytest.fail("a stream hangs")
        except openai.APIError as error:  # an event of the stream: its status was sent before
            self.silent_s = time.monotonic() - last
            return f"{error.message}"
        finally:
            self.begun.set()
        return "done"


def start(checkpoint: Path, log: Path, **environment: str) -> Server:
    spec = CASE.spec(checkpoint)
    more = {"VLLM_ASCEND_MRV2_REPLAY_TIMEOUT_S": str(LIMIT_S), **environment}
    server = Server(replace(spec, environment=tuple(more.items())), log)
    server.start()
    return server


def ends(server: Server, shared_memory: Iterable[Path], within_s: float = END_S) -> None:
    """The server ends by itself with an error, and so does all that it started; nothing is left."""
    assert server.process is not None
    server.process.wait(LIMIT_S + END_S)
    server.assert_nothing_is_left(shared_memory, within_s)
    assert server.process.returncode != 0, "a supervisor would take this end for one asked for"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("stuck", f"ReplayTimeoutError: rank 0: a step did not end within {LIMIT_S} s"),
        ("error", "an injected fault"),
    ],
)
def test_a_device_fault_is_told_to_every_client(
    fault: str, said: str, checkpoint_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    inject = f"{fault}:graph_replay:{FAULT_AT}"
    server = start(checkpoint_of(CASE), tmp_path / "log", ASCEND_EMU_INJECT=inject)
    try:
        stream = Stream(server)
        with ThreadPoolExecutor(4) as pool:
            long = [pool.submit(stream.run), *(pool.submit(ask, server, LONG) for _ in range(2))]
            stream.begun.wait(END_S)
            shared_memory = server.shared_memory()
            assert ask(server, 4) == "done"  # long before the fault
            errors = [request.result() for request in long]
        for error in errors:
            assert said in error
        assert all(error.startswith("500: ") for error in errors[1:]), errors
        limit_s = LIMIT_S if fault == "stuck" else 0
        assert limit_s <= stream.silent_s < limit_s + END_S / 4
        ends(server, shared_memory)
    finally:
        server.kill()


@SMOLLM2.group
def test_a_killed_engine_is_told_to_every_client(
    servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    """The last of this server's tests: it ends it."""
    server = servers.get(SMOLLM2.spec(checkpoint_of(SMOLLM2)))
    stream = Stream(server)
    with ThreadPoolExecutor(3) as pool:
        long = [pool.submit(stream.run), pool.submit(ask, server, LONG)]
        stream.begun.wait(END_S)
        shared_memory = server.shared_memory()
        assert ask(server, 2) == "done"
        engine = [p for p in server.processes() if "EngineCore" in title(p)]
        assert len(engine) == 1
        engine[0].send_signal(signal.SIGKILL)
        errors = [request.result() for request in long]
    for error in errors:
        assert "It left no reason, as a process that is killed does." in error
    assert stream.silent_s < END_S / 4
    ends(server, shared_memory)


@pytest.mark.long
def test_a_device_out_of_memory_is_told_to_every_client(
    checkpoint_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    """From the third decode step on nothing more can be allocated; what fits goes on."""
    server = start(checkpoint_of(CASE), tmp_path / "log", ASCEND_EMU_INJECT="oom:graph_replay:3")
    try:
        stream = Stream(server)
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(stream.run)
            stream.begun.wait(END_S)
            shared_memory = server.shared_memory()
            assert ask(server, 20) == "done"
            assert not long.done()
            with pytest.raises(openai.APIStatusError) as failed:
                server.client().completions.create(
                    model=MODEL_NAME,
                    prompt=[5] * 600,
                    max_tokens=1,
                    timeout=LIMIT_S + END_S,
                    extra_body={"prompt_logprobs": 20},
                )
            assert failed.value.status_code == 500
            for error in (failed.value.message, long.result()):
                assert "out of memory" in error
        assert stream.silent_s < END_S / 4
        ends(server, shared_memory)
    finally:
        server.kill()
