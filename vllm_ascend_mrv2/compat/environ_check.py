# SPDX-License-Identifier: Apache-2.0
"""Core's check for unknown VLLM_ variables, where it does not ask the platform.

Reason, core versions and when this goes: `differences.ENVIRON_CHECK`. Undo with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Callable

from vllm_ascend_mrv2.compat.differences import ENVIRON_CHECK

_original: Callable[[bool], None] | None = None


def core_asks_platform() -> bool:
    """Whether core asks the platform to check; else `install` makes it."""
    from vllm.platforms.interface import Platform

    return hasattr(Platform, "validate_environ")


@ENVIRON_CHECK.serves
def install(check: Callable[[bool], None]) -> None:
    """Let core's check be the platform's. Idempotent."""
    global _original
    if _original is None:
        import vllm.envs

        _original = vllm.envs.validate_environ
        vllm.envs.validate_environ = check


@ENVIRON_CHECK.serves
def of_core(hard_fail: bool) -> None:
    """Core's own check, after `install`. Raises ValueError for an unknown variable."""
    assert _original is not None
    _original(hard_fail)


@ENVIRON_CHECK.serves
def uninstall() -> None:
    """Give core's function back."""
    global _original
    if _original is not None:
        import vllm.envs

        vllm.envs.validate_environ = _original
        _original = None
