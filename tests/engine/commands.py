# SPDX-License-Identifier: Apache-2.0
"""Runs a `vllm` command to its end, as a user would, with a limit on its time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.engine.server import VLLM, environment


@dataclass(frozen=True)
class Ran:
    """A command that has ended: exit code, everything it printed, and how long it took."""

    code: int
    output: str
    seconds: float

    def line_with(self, text: str) -> str:
        """The first printed line that has `text` in it; fails, with the output, where none has."""
        for line in self.output.splitlines():
            if text in line:
                return line
        raise AssertionError(f"no line has {text!r}:\n{self.output[-6000:]}")


def vllm(
    *arguments: str | Path, extra: Mapping[str, str] | None = None, timeout_s: float = 240
) -> Ran:
    """Run `vllm ARGUMENTS`. Fails where it hangs; ends everything that it started."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(VLLM), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment(extra),
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(
            f"`vllm {' '.join(map(str, arguments))}` hung for {timeout_s} s:\n{output[-6000:]}"
        ) from None
    return Ran(process.returncode, output, time.monotonic() - begin)
