# SPDX-License-Identifier: Apache-2.0
"""Makes a server whose engine has died say why to its clients and end with an error, which what
supervises it sees.

Why: core's HTTP server notices a dead engine, refers its clients to its log, stops, and exits with
code 0, as if it had been asked to.
Core versions: 0.30 to 0.33. Goes when core's server exits with another code by itself and hands the
engine's error on. Undo with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_original: Any = None
_SILENT = "It left no reason, as a process that is killed does."


class EngineDiedError(RuntimeError):
    """The engine ended by itself; its own error is in the log above."""


def install(reason: Callable[[], str]) -> None:
    """Let a server that stops because of its engine end with EngineDiedError. Idempotent.

    reason: why it died, for clients; "" where that is not known.
    """
    global _original
    if _original is not None:
        return
    from vllm.entrypoints.launchers import launcher  # here: a start-up without a server has no use
    from vllm.v1.engine.exceptions import EngineDeadError

    original = launcher.terminate_if_errored

    def terminate_if_errored(server: Any, engine: Any) -> None:
        was_ending = server.should_exit
        original(server, engine)
        if server.should_exit and not was_ending:
            _fail_at_end(server)

    def text(self: EngineDeadError) -> str:
        why = reason()
        return f"{Exception.__str__(self)} {f'It said: {why}' if why else _SILENT}"

    EngineDeadError.__str__ = text
    _bind(terminate_if_errored)
    _original = original


def uninstall() -> None:
    """Give core's names back."""
    global _original
    if _original is not None:
        from vllm.v1.engine.exceptions import EngineDeadError

        del EngineDeadError.__str__
        _bind(_original)
        _original = None


def _bind(function: Any) -> None:
    from vllm.entrypoints.launchers import launcher
    from vllm.entrypoints.serve.exception_handling.handlers import vllm_error

    launcher.terminate_if_errored = function
    vllm_error.terminate_if_errored = function  # which has it by from-import


def _fail_at_end(server: Any) -> None:
    """Core awaits the server's own shutdown last, after clients were answered."""
    shutdown = server.shutdown

    async def shutdown_and_fail(*args: Any, **kwargs: Any) -> None:
        await shutdown(*args, **kwargs)
        raise EngineDiedError("the engine has died; the log above says why")

    server.shutdown = shutdown_and_fail
