# SPDX-License-Identifier: Apache-2.0
"""How a program ends that was refused: with the line that says why, and nothing around it.

vLLM checks a configuration deep inside of its own; a refusal would reach the user in the middle of
a traceback, within what pydantic says of it, with torch_npu's "unknown application exception" last.
"""

from __future__ import annotations

import sys
from types import TracebackType

_lines: dict[str, None] = {}  # in the order in which they were said


def end_with(line: str) -> None:
    """Let this process, where an exception with `line` in its text ends it, print the line alone.

    Every other exception is shown as before. A program may be refused often, and go on: what shows
    exceptions is put in place once.
    """
    if not _lines:
        _install()
    _lines[line] = None


def _install() -> None:
    shown_before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = str(error)
        if (line := next((known for known in _lines if known in text), None)) is not None:
            print(f"error: {line}", file=sys.stderr, flush=True)
        else:
            shown_before(kind, error, trace)

    sys.excepthook = show
