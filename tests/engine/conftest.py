# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the engine tests: checkpoints, and a pool that keeps one server up per process.

A server takes about 15 s to start and 2 GB: tests that want the same one stand together, in one
`xdist_group`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine import checkpoints
from tests.engine.cases import Case
from tests.engine.server import Server, ServerSpec

LONG_TIMEOUT_S = 1800


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one server next to each other (a change costs a start); time for the long ones."""

    def place(item: pytest.Item) -> str:
        mark = item.get_closest_marker("xdist_group")
        return f"{item.path}" if mark is None else str(mark.args[0])

    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        first.setdefault(place(item), index)
    items.sort(key=lambda item: first[place(item)])


@pytest.fixture(autouse=True)
def nothing_is_pinned() -> Iterator[None]:
    """An engine in this process has pinned no host memory, unless the debug switch told it to."""
    yield
    from tests.helpers.emulated import acl

    if os.environ.get("VLLM_ASCEND_MRV2_PIN_MEMORY", "0") == "0":
        assert acl().emu_pinned_allocations() == 0, "host memory was pinned"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(family, dtype) -> path of that tiny checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return lambda family, dtype: checkpoints.tiny_checkpoint(folder, family, dtype)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct."""
    return checkpoints.smollm2_checkpoint()


@pytest.fixture
def checkpoint_of(
    tiny: Callable[[str, str], Path], request: pytest.FixtureRequest
) -> Callable[[Case], Path]:
    """Case -> its checkpoint, made where it is missing."""

    def path(case: Case) -> Path:
        if case.model == "smollm2":
            return request.getfixturevalue("smollm2")
        return tiny(case.model, case.dtype)

    return path


@pytest.fixture(scope="session")
def engine_config() -> Callable[..., Any]:
    """argv of `vllm serve` -> the finished VllmConfig, as the server makes it at its start."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())

    def make(*arguments: str | Path) -> Any:
        parsed = parser.parse_args([str(argument) for argument in arguments])
        return AsyncEngineArgs.from_cli_args(parsed).create_engine_config()

    return make


class ServerPool:
    """Hands out running servers. Keeps the last one: memory, and tests are ordered by server."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started = 0
        self._server: Server | None = None

    def get(self, spec: ServerSpec) -> Server:
        """A healthy server of this specification, started where the last one is another."""
        if self._server is not None and self._server.spec == spec and self._server.is_healthy():
            return self._server
        self.stop()
        self._started += 1
        server = Server(spec, self._logs / f"server-{self._started}.log")
        server.start()
        self._server = server
        return server

    def stop(self) -> None:
        """Stop the server that is up, if any."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """The pool of this test process."""
    pool = ServerPool(tmp_path_factory.mktemp("servers"))
    yield pool
    pool.stop()
