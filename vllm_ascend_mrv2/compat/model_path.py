# SPDX-License-Identifier: Apache-2.0
"""Says that a model folder is not there, before core takes its path for a name on a model hub.

Why: core hands a missing path to the hub client, whose error is about the form of repository names.
Core versions: 0.30 to 0.33. Goes when core checks paths itself. Undo with `uninstall()`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_original: Any = None


def missing_folder(model: str) -> str | None:
    """Why `model` cannot be a model, if it is written as a path and there is no such folder."""
    if not model.startswith(("/", "./", "../", "~")) or Path(model).expanduser().exists():
        return None
    return f"the model folder {model} does not exist; check its spelling, or that it was made."


def install() -> None:
    """Make EngineArgs ask first, when they are made. Idempotent."""
    global _original
    if _original is not None:
        return
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.__post_init__

    def __post_init__(self: Any) -> None:  # noqa: N807 (it takes the place of the dataclass's)
        if reason := missing_folder(self.model):
            raise ValueError(reason)
        original(self)

    EngineArgs.__post_init__ = __post_init__
    _original = original


def uninstall() -> None:
    """Give core's method back."""
    global _original
    if _original is None:
        return
    from vllm.engine.arg_utils import EngineArgs

    EngineArgs.__post_init__ = _original
    _original = None
