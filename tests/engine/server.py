# SPDX-License-Identifier: Apache-2.0
"""A real `vllm serve --device npu` in a session of its own, and what it leaves behind.

Starts, waits, asks for metrics, stops. Knows no test and no model.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import psutil
from prometheus_client.parser import text_string_to_metric_families

VLLM = Path(sysconfig.get_path("scripts"), "vllm")
MODEL_NAME = "served"
START_TIMEOUT_S = 580  # 15 s where nothing else runs; below pytest's own limit
STOP_TIMEOUT_S = 20  # also what the shutdown test demands
SHARED_MEMORY = Path("/dev/shm")
MARK = "STARTED_BY_THE_TESTS"
# Made once: httpx would read the system's certificates at every look at a server that starts.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ServerError(AssertionError):
    """The server ended or did not come up; carries the end of its log."""


@dataclass(frozen=True)
class ServerSpec:
    """All that makes two servers the same: checkpoint, dtype, further arguments, environment."""

    checkpoint: Path
    dtype: str = "float32"
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a vLLM process under test: this one's, without network, with `extra`."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
        "NO_COLOR": "1",
        "COLUMNS": "200",  # argparse wraps its messages to the terminal
        **(extra or {}),
    }


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def title(process: psutil.Process) -> str:
    """The first word of its command line, which vLLM and Ray set; "" where it has just ended."""
    try:
        return next(iter(process.cmdline()), "")
    except psutil.Error:
        return ""


@dataclass
class Server:
    """One running server. `start` returns when it is healthy; `stop` always ends its group."""

    spec: ServerSpec
    log: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    # Of its own, with a short name: sockets lie there.
    _temporary: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        fixed = ("--device", "npu", "--host", "127.0.0.1", "--port", str(self.port))
        named = ("--served-model-name", MODEL_NAME, "--dtype", self.spec.dtype)
        return [str(VLLM), "serve", str(self.spec.checkpoint), *fixed, *named, *self.spec.arguments]

    def start(self) -> None:
        """Raises ServerError, with the log, where it ends or is not healthy in time."""
        self._remove_temporary()
        self._temporary = Path(tempfile.mkdtemp(prefix="served-"))
        mine = {MARK: str(self._temporary), "TMPDIR": str(self._temporary)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment({**dict(self.spec.environment), **mine}),
                start_new_session=True,  # one group to signal, whatever it spawns
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while not self.is_healthy():
                if self.process.poll() is not None:
                    raise self._failed(f"ended with exit code {self.process.returncode}")
                if time.monotonic() > deadline:
                    raise self._failed(f"was not healthy after {START_TIMEOUT_S} s")
                time.sleep(0.2)
        except BaseException:
            self.kill()
            raise

    def is_healthy(self) -> bool:
        try:
            answer = httpx.get(f"{self.url}/health", timeout=5, verify=NO_TLS)
            return answer.status_code == 200
        except httpx.HTTPError:
            return False

    def client(self) -> openai.OpenAI:
        """No retries: a test shall see the first failure."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a counter over those with these labels. Raises KeyError where none is."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        samples = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        if not samples:
            raise KeyError(f"{name} {labels or ''} is not among the server's metrics")
        return sum(samples)

    def processes(self) -> list[psutil.Process]:
        """Every live process that the server has started, the server itself included."""
        assert self.process is not None
        return [process for process in psutil.process_iter() if self._has_started(process)]

    def _has_started(self, process: psutil.Process) -> bool:
        """By its session; one that left it still has our mark, unless it wrote its title there."""
        assert self.process is not None
        try:
            in_session = os.getsid(process.pid) == self.process.pid
            if not in_session and process.environ().get(MARK) != str(self._temporary):
                return False
            return bool(process.status() != psutil.STATUS_ZOMBIE)
        except (ProcessLookupError, psutil.Error):
            return False

    def shared_memory(self) -> set[Path]:
        """Files in /dev/shm that a process of the server has open or mapped."""
        found = set()
        for process in self.processes():
            root = Path("/proc", str(process.pid))
            try:
                maps = root.joinpath("maps").read_text().splitlines()
                found |= {Path(line.split(maxsplit=5)[5]) for line in maps if "/shm/" in line}
                found |= {fd.readlink() for fd in root.joinpath("fd").iterdir()}
            except OSError:  # it has just ended
                continue
        return {path for path in found if path.parent == SHARED_MEMORY and path.exists()}

    def assert_nothing_is_left(self, shared_memory: Iterable[Path], within_s: float) -> None:
        """No process of it, none of this shared memory and no temporary file, soon at least."""
        deadline = time.monotonic() + within_s
        while (left := self._left(shared_memory)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, left

    def _left(self, shared_memory: Iterable[Path]) -> list[str]:
        assert self._temporary is not None
        files = []
        for folder, folders, names in os.walk(self._temporary):
            if Path(folder) == self._temporary and "ray" in folders:
                folders.remove("ray")  # which keeps the logs of its sessions
            files += [os.path.join(folder, name) for name in names]  # noqa: PTH118
        return [
            *(f"{process.pid} {title(process)}" for process in self.processes()),
            *(str(path) for path in shared_memory if path.exists()),
            *files,
        ]

    def end(self, how: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Signal the server and wait for it alone; its exit code. What it leaves is still there.

        Raises subprocess.TimeoutExpired where it did not end by itself.
        """
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout_s)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """As `end`, and end what is left."""
        try:
            return self.end(how, timeout_s=6 * STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End every process of the session, at once."""
        if self.process is None:
            return
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _failed(self, what: str) -> ServerError:
        return ServerError(f"`{' '.join(self.command())}` {what}. Its log ends:\n{self.log_tail()}")
