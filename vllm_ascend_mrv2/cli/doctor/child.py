# SPDX-License-Identifier: Apache-2.0
"""A Python process that is asked one thing, and may fail, hang or be ended instead.

What is asked is the caller's.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# A first import of torch and torch_npu from a cold disk; beyond this the device hangs.
TIMEOUT_S = 120
# Begins the line that is the answer, in JSON; a library may print others.
ANSWER = "doctor:"
NO_ANSWER = "no answer within "  # begins the reason of a child that hung


def ask(*arguments: str, environ: Mapping[str, str], timeout_s: float | None = None) -> Any:
    """What the child answers, or, as a string, why it does not. An answer is never a string."""
    limit_s = TIMEOUT_S if timeout_s is None else timeout_s
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**environ},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"{NO_ANSWER}{limit_s} s"
    for line in done.stdout.splitlines():
        if done.returncode == 0 and line.startswith(ANSWER):
            return json.loads(line.removeprefix(ANSWER))
    cause = _cause(done.stderr)
    if done.returncode < 0:  # what was printed before may have nothing to do with it
        by = f"it was ended by signal {-done.returncode} ({signal.strsignal(-done.returncode)})"
        return f"{by}, after: {cause}" if cause else by
    return cause or f"it ended with exit code {done.returncode}"


def _cause(stderr: str) -> str:
    """The exception that a traceback begins with: of a chain, the one that the others follow."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (raised[:1] or lines[-1:] or [""])[0]
