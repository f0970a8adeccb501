# SPDX-License-Identifier: Apache-2.0
"""Binds names of ours where core's model runner uses its own.

Why: the runner's step uses these classes and functions as module globals and offers no factory.
Core versions: 0.30 to 0.33. Goes when core has a hook for them. Undo with `uninstall()`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

_MODULE = "vllm.v1.worker.gpu.model_runner"
_originals: dict[str, Any] = {}


def install(replacements: Mapping[str, Any]) -> None:
    """Bind each name in core's model_runner module. Idempotent."""
    module = importlib.import_module(_MODULE)
    for name, replacement in replacements.items():
        original = getattr(module, name)
        if original is not replacement:
            _originals.setdefault(name, original)
            setattr(module, name, replacement)


def uninstall() -> None:
    """Give core's own classes back."""
    module = importlib.import_module(_MODULE)
    for name, original in _originals.items():
        setattr(module, name, original)
    _originals.clear()
