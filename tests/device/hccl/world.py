# SPDX-License-Identifier: Apache-2.0
"""Ranks of a communicator in processes and threads, with the real `ProcessGroupHCCL`.

`World([[0], [1]])` is two processes, `World([[0, 1, 2]])` three threads of one. A program is a
function of a `Rank` in a module that the processes can import; `run` calls it on all ranks at once
and returns what each returned. No test here.

Processes are forked from one that has imported torch and uses no device: one such `Nursery` for
each set of the emulator's variables, which are read while torch is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import queue
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

START_S = 120
RUN_S = 120
DEVICES = 4
PR_SET_PDEATHSIG = 1

Program = Callable[..., Any]


@dataclass(frozen=True)
class Rank:
    """One rank: where it is and its process group."""

    rank: int
    ranks: int
    group: Any
    store: Any

    @property
    def device(self) -> torch.device:
        return torch.device("npu", self.rank)

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def new_group(self, name: str) -> Any:
        """Another process group of all ranks, with a communicator of its own."""
        return process_group(dist.PrefixStore(name, self.store), self.rank, self.ranks)

    def meet(self, name: str) -> None:
        """Wait, on the host, until all ranks have come here."""
        self.store.add(name, 1)
        until = time.monotonic() + RUN_S / 2
        while self.store.add(name, 0) < self.ranks:
            assert time.monotonic() < until, f"not all ranks came to {name!r}"
            time.sleep(0.01)


def process_group(store: Any, rank: int, ranks: int) -> Any:
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL

    return ProcessGroupHCCL(store, rank, ranks, ProcessGroupHCCL.Options())


class _Thread(threading.Thread):
    """Runs programs of one rank, each as it comes."""

    def __init__(self, rank: int, ranks: int, store_path: str) -> None:
        super().__init__(daemon=True)
        self.programs: queue.Queue[tuple[Program, tuple[Any, ...]]] = queue.Queue()
        self.results: queue.Queue[tuple[bool, Any]] = queue.Queue()
        self._rank, self._ranks, self._store_path = rank, ranks, store_path

    def run(self) -> None:
        torch.npu.set_device(self._rank)
        store = dist.FileStore(self._store_path, self._ranks)
        group = process_group(dist.PrefixStore("world", store), self._rank, self._ranks)
        rank = Rank(self._rank, self._ranks, group, store)
        while True:
            program, arguments = self.programs.get()
            try:
                result = program(rank, *arguments)
                torch.npu.synchronize()
                self.results.put((True, result))
            except Exception:
                self.results.put((False, traceback.format_exc()))


def _host(ranks_here: list[int], ranks: int, store_path: str, address: str) -> None:
    """A process of ranks: hands programs to them until there are no more."""
    threads = [_Thread(rank, ranks, store_path) for rank in ranks_here]
    for thread in threads:
        thread.start()
    connection = Client(address)
    connection.send((ranks_here, os.getpid()))
    with contextlib.suppress(EOFError):
        while (asked := connection.recv()) is not None:
            for thread in threads:
                thread.programs.put(asked)
            connection.send([thread.results.get() for thread in threads])


def _nursery(connection: Connection, environment: dict[str, str]) -> None:
    """Forks a process for each request; the request's variables are its own."""
    gc.freeze()  # else each child, as it ends, collects (and copies) all that was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with contextlib.suppress(EOFError):
        while True:
            arguments, variables = connection.recv()
            child = os.fork()
            if child == 0:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a hung one ends with us
                connection.close()
                os.environ.update(variables)
                try:
                    _host(*arguments)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                raise SystemExit(0)  # through every exit handler, as a program ends
            connection.send(child)


class Nursery:
    """The test's side of `_nursery`."""

    def __init__(self, environment: dict[str, str]) -> None:
        here, there = get_context("spawn").Pipe()
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            get_context("spawn").Process(
                target=_nursery, args=(there, environment), daemon=True
            ).start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        there.close()
        self._connection = here

    def fork(self, arguments: tuple[Any, ...], variables: dict[str, str]) -> int:
        self._connection.send((arguments, variables))
        assert self._connection.poll(START_S), "torch was not imported in time"
        return int(self._connection.recv())


@functools.cache
def _nursery_for(environment: tuple[tuple[str, str], ...]) -> Nursery:
    return Nursery(dict(environment))


class World:
    """Started on entry, ended on exit. Environment variables are those of its processes only."""

    def __init__(self, layout: Sequence[Sequence[int]], **environment: str) -> None:
        self._layout = [list(ranks) for ranks in layout]
        self.ranks = sum(len(ranks) for ranks in self._layout)
        self.processes: dict[int, int] = {}  # process ids by rank
        at_load = {"ASCEND_EMU_DEVICES": str(DEVICES)} | {
            name: value for name, value in environment.items() if name.startswith("ASCEND_EMU_")
        }
        self._nursery = _nursery_for(tuple(sorted(at_load.items())))
        self._variables = environment

    def __enter__(self) -> World:
        self._folder = tempfile.TemporaryDirectory()
        store_path = str(Path(self._folder.name) / "store")
        address = str(Path(self._folder.name) / "socket")
        with Listener(address) as listener:
            for ranks_here in self._layout:
                self._nursery.fork((ranks_here, self.ranks, store_path, address), self._variables)
            self._connections: dict[tuple[int, ...], Connection] = {}
            for _ in self._layout:
                connection = listener.accept()
                ranks_here, process = connection.recv()
                self._connections[tuple(ranks_here)] = connection
                self.processes.update(dict.fromkeys(ranks_here, process))
        return self

    def run(self, program: Program, *arguments: Any) -> list[Any]:
        """What each rank returned. Raises RuntimeError with the tracebacks where one failed."""
        results = self.outcomes(program, *arguments)
        failed = [str(result) for is_good, result in results if not is_good]
        if failed:
            raise RuntimeError("\n".join(failed))
        return [result for _, result in results]

    def outcomes(self, program: Program, *arguments: Any) -> list[tuple[bool, Any]]:
        """For each rank whether it returned, and what, or its traceback."""
        for connection in self._connections.values():
            connection.send((program, arguments))
        results: dict[int, tuple[bool, Any]] = {}
        for ranks_here, connection in self._connections.items():
            try:
                assert connection.poll(RUN_S), f"the ranks {ranks_here} hang"
                answers = connection.recv()
            except EOFError:
                answers = [(False, "the process ended")] * len(ranks_here)
            results.update(zip(ranks_here, answers, strict=True))
        return [results[rank] for rank in range(self.ranks)]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it ended before
                connection.send(None)
        until = time.monotonic() + 20
        for process in set(self.processes.values()):
            while time.monotonic() < until and Path(f"/proc/{process}").exists():
                time.sleep(0.02)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._folder.cleanup()
