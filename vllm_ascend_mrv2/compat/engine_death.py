# SPDX-License-Identifier: Apache-2.0
"""Makes a server whose engine has died end with an error, so that what supervises it sees one.

Why: core's HTTP server notices a dead engine, answers its clients with errors, stops, and exits
with code 0, as if it had been asked to.
Core versions: 0.30 to 0.33. Goes when core's server exits with another code by itself. Undo with
`uninstall()`.
"""

from __future__ import annotations

from typing import Any

_original: Any = None


class EngineDiedError(RuntimeError):
    """The engine ended by itself; its own error is in the log above."""


def install() -> None:
    """Let a server that stops because of its engine end with EngineDiedError. Idempotent."""
    global _original
    if _original is not None:
        return
    from vllm.entrypoints.launchers import launcher  # here: a start-up without a server has no use

    original = launcher.terminate_if_errored

    def terminate_if_errored(server: Any, engine: Any) -> None:
        was_ending = server.should_exit
        original(server, engine)
        if server.should_exit and not was_ending:
            _fail_at_end(server)

    _bind(terminate_if_errored)
    _original = original


def uninstall() -> None:
    """Give core's function back."""
    global _original
    if _original is not None:
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
