# SPDX-License-Identifier: Apache-2.0
"""Why an engine dies, said to the server in front of it, so that clients are told more than that.

Core tells a server that its engine has died, and nothing else. A worker that fails writes its error
into a file without a name that the server holds open: nothing is left of it, whoever is killed.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

# Not one of our switches: it goes from a process to those that it starts.
_PLACE = "_VLLM_ASCEND_MRV2_LAST_WORDS"
_LONGEST = 1000


def listen() -> None:
    """Make a place for the last words of engines that this process starts. Idempotent."""
    if not os.access(os.environ.get(_PLACE, ""), os.W_OK):
        file = os.memfd_create("last-words")
        os.environ[_PLACE] = f"/proc/{os.getpid()}/fd/{file}"


def heard() -> str:
    """The first error that ended an engine of this server, or "" where none was said."""
    try:
        return Path(os.environ[_PLACE]).read_text(encoding="utf-8")
    except (KeyError, OSError):
        return ""


def say(error: BaseException) -> None:
    """Keep `error` for the server, unless an earlier one is there. For what ends the engine."""
    try:
        with Path(os.environ[_PLACE]).open("r+", encoding="utf-8") as place:
            if not place.read(1):
                place.seek(0)
                place.write(f"{type(error).__name__}: {error}"[:_LONGEST])
    except (KeyError, OSError):
        pass  # no server, or it is gone


class _Said:
    """`with SAID:` says what is raised inside. Holds nothing: one serves all."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            say(error)


SAID = _Said()
