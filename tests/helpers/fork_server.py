# SPDX-License-Identifier: Apache-2.0
"""Processes that have imported torch and torch_npu, for the price of a fork: for `run_script`.

`import torch` takes seconds of a core, and many tests need a process of their own. This one imports
it once and never uses a device (which does not survive a fork); each request becomes a child, with
its own environment and output. What is read while torch is imported cannot be set for a child.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
_MAX_REQUEST_BYTES = 1 << 20


class ForkServer:
    """The client's side: starts the server at the first run, ends it with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(
        self, script: str, environment: dict[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run([python, "-c", script], ...)`; raises subprocess.TimeoutExpired."""
        connection = self._connect()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = {"script": script, "environment": environment, "cwd": str(Path.cwd())}
            files = array.array("i", [out.fileno(), err.fileno()])
            connection.sendmsg(
                [json.dumps(request).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)],
            )
            child = int(connection.recv(64))
            connection.settimeout(timeout_s)
            try:
                status = int(connection.recv(64))
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                connection.settimeout(None)
                connection.recv(64)  # its end
                raise subprocess.TimeoutExpired(
                    "a forked script", timeout_s, _text(out), _text(err)
                ) from None
            connection.settimeout(None)
            command = [sys.executable, "-c", script]
            code = os.waitstatus_to_exitcode(status)
            return subprocess.CompletedProcess(command, code, _text(out), _text(err))

    def _connect(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                )
            self._socket = ours
            atexit.register(self._end)
        return self._socket

    def _end(self) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()  # the server's next recv ends it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _next_script(connection: socket.socket) -> str | None:
    """Serve requests; in each child, its script. None where the client is gone."""
    while True:
        data, ancillary, _, _ = connection.recvmsg(
            _MAX_REQUEST_BYTES, socket.CMSG_SPACE(2 * array.array("i").itemsize)
        )
        if not data:
            return None
        files = array.array("i")
        files.frombytes(ancillary[0][2])
        child = os.fork()
        if child == 0:
            connection.close()
            return _become(json.loads(data), list(files))
        for file in files:
            os.close(file)
        connection.send(str(child).encode())
        connection.send(str(os.waitpid(child, 0)[1]).encode())


def _become(request: dict[str, Any], files: list[int]) -> str:
    for source, target in zip(files, (1, 2), strict=True):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["-c"]
    return str(request["script"])


if __name__ == "__main__":
    import torch  # noqa: F401  its autoload imports torch_npu

    gc.freeze()  # else each child, as it ends, collects (and copies) all that was imported
    script = _next_script(socket.socket(fileno=int(sys.argv[1])))
    if script is not None:
        # At the top of the program: it ends as one does that began with this script.
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
