# SPDX-License-Identifier: Apache-2.0
"""One process group under test: started on its CPUs, asked over HTTP, and always ended.

Knows commands, ports and signals; no protocol and no folder.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1


class ServerStartError(RuntimeError):
    """The server ended, or was not healthy in time."""


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def child_setup(cpus: Iterable[int], on_parents_death: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: keep to those CPUs, and get that signal if this process dies.

    The signal is for the one end that no `finally` sees: SIGKILL.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = set(cpus)

    def setup() -> None:
        os.sched_setaffinity(0, allowed)
        if libc.prctl(_PR_SET_PDEATHSIG, int(on_parents_death), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    return setup


def session(leader: int) -> list[psutil.Process]:
    """Every live process of the session that `leader` began."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def end_session(leader: int) -> None:
    """Kill every process of a session, and wait until they are gone."""
    for _ in range(100):
        alive = session(leader)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if not alive:
            return
        time.sleep(0.1)


@dataclass
class Server:
    """`with Server(...) as server:` — healthy inside, gone afterwards, whatever happened."""

    command: Sequence[str]
    environment: Mapping[str, str]
    cpus: Iterable[int]
    port: int
    log: Path
    start_timeout_s: float
    stop_timeout_s: float
    # Called while the start is waited for; may raise to give it up.
    check: Callable[[], None]
    process: subprocess.Popen[bytes] | None = None
    healthy_after_s: float = 0.0
    exit_code: int | None = field(default=None, init=False)

    def __enter__(self) -> Server:
        """Raises ServerStartError."""
        began = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
                preexec_fn=child_setup(self.cpus, signal.SIGTERM),
            )
        try:
            while not self._is_healthy():
                self.check()
                if self.process.poll() is not None:
                    raise ServerStartError(f"ended with exit code {self.process.returncode}")
                if time.monotonic() > began + self.start_timeout_s:
                    raise ServerStartError(f"not healthy after {self.start_timeout_s:g} s")
                time.sleep(0.2)
        except BaseException:
            self._kill()
            raise
        self.healthy_after_s = time.monotonic() - began
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process is not None
        try:
            if self.process.poll() is None:
                self.process.terminate()
            self.exit_code = self.process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.exit_code = None
        finally:
            self._kill()

    def get(self, path: str, timeout_s: float = 30) -> str:
        """Body of a GET. Raises OSError."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return str(response.read().decode())

    def cpu_s(self) -> float:
        """CPU seconds that the server's living processes have used."""
        assert self.process is not None
        total = 0.0
        for process in session(self.process.pid):
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += used.user + used.system
        return total

    def _is_healthy(self) -> bool:
        try:
            self.get("/health", timeout_s=5)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _kill(self) -> None:
        assert self.process is not None
        end_session(self.process.pid)
        self.process.wait(30)
