# SPDX-License-Identifier: Apache-2.0
"""Ranks of a communicator in processes and threads, with the real `ProcessGroupHCCL`.

`World([[0], [1]])` is two processes, `World([[0, 1, 2]])` three threads of one. A program is a
function of a `Rank` in a module that the processes can import; `run` calls it on all ranks at once
and returns what each returned. No test here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

START_S = 120
RUN_S = 120


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


Program = Callable[..., Any]


def process_group(store: Any, rank: int, ranks: int) -> Any:
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL

    return ProcessGroupHCCL(store, rank, ranks, ProcessGroupHCCL.Options())


class _Thread(threading.Thread):
    """Runs programs of one rank, each as it comes."""

    def __init__(self, rank: int, ranks: int, store_path: str) -> None:
        super().__init__(daemon=True)
        self.programs: queue.Queue[tuple[Program, tuple[Any, ...]] | None] = queue.Queue()
        self.results: queue.Queue[tuple[bool, Any]] = queue.Queue()
        self._rank, self._ranks, self._store_path = rank, ranks, store_path

    def run(self) -> None:
        torch.npu.set_device(self._rank)
        store = dist.FileStore(self._store_path, self._ranks)
        group = process_group(dist.PrefixStore("world", store), self._rank, self._ranks)
        rank = Rank(self._rank, self._ranks, group, store)
        while (asked := self.programs.get()) is not None:
            program, arguments = asked
            try:
                result = program(rank, *arguments)
                torch.npu.synchronize()
                self.results.put((True, result))
            except Exception:
                self.results.put((False, traceback.format_exc()))


def _host(ranks_here: list[int], ranks: int, store_path: str, connection: Connection) -> None:
    """A process: hands programs to its ranks until there are no more."""
    threads = [_Thread(rank, ranks, store_path) for rank in ranks_here]
    for thread in threads:
        thread.start()
    connection.send("ready")
    while (asked := connection.recv()) is not None:
        for thread in threads:
            thread.programs.put(asked)
        connection.send([thread.results.get() for thread in threads])


class World:
    """Started on entry, ended on exit. Environment variables are those of its processes only."""

    def __init__(self, layout: Sequence[Sequence[int]], **environment: str) -> None:
        self._layout = [list(ranks) for ranks in layout]
        self.ranks = sum(len(ranks) for ranks in self._layout)
        self._environment = {"ASCEND_EMU_DEVICES": str(self.ranks), **environment}

    def __enter__(self) -> World:
        context = get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store_path = str(Path(self._folder.name) / "store")
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            self.processes, self._connections = [], []
            for ranks_here in self._layout:
                here, there = context.Pipe()
                arguments = (ranks_here, self.ranks, store_path, there)
                process = context.Process(target=_host, args=arguments, daemon=True)
                process.start()
                there.close()
                self.processes.append(process)
                self._connections.append(here)
        finally:
            os.environ.clear()
            os.environ.update(before)
        for connection in self._connections:
            assert connection.poll(START_S), "a process of the world did not start"
            assert connection.recv() == "ready"
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
        for connection in self._connections:
            connection.send((program, arguments))
        results: dict[int, tuple[bool, Any]] = {}
        for ranks_here, connection in zip(self._layout, self._connections, strict=True):
            try:
                is_there = connection.poll(RUN_S)
                answers = connection.recv() if is_there else None
            except EOFError:
                answers = [(False, "the process ended")] * len(ranks_here)
            assert answers is not None, f"the ranks {ranks_here} hang"
            results.update(zip(ranks_here, answers, strict=True))
        return [results[rank] for rank in range(self.ranks)]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it ended before
                connection.send(None)
        for process in self.processes:
            process.join(20)
            process.kill()
            process.join()
        self._folder.cleanup()
