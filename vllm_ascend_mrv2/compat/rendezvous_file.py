# SPDX-License-Identifier: Apache-2.0
"""Puts the file by which the ranks of an engine find each other beside the engine's sockets.

Why: core makes it in the temporary folder and leaves it there; where its sockets lie can be chosen
(VLLM_RPC_BASE_PATH).
Core versions: 0.30 to 0.33. Goes when core removes the file, or makes it where its sockets lie.
Undo with `uninstall()`.
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

_USERS = ("vllm.v1.executor.multiproc_executor", "vllm.v1.executor.uniproc_executor")
_original: Any = None


def install() -> None:
    """For the executors of this process. Idempotent."""
    global _original
    if _original is not None:
        return
    from vllm import envs
    from vllm.utils import network_utils

    _original = network_utils.get_file_store_init_method

    def get_file_store_init_method() -> str:
        return f"file://{envs.VLLM_RPC_BASE_PATH}/{uuid4().hex}"

    _bind(get_file_store_init_method)


def uninstall() -> None:
    """Give core's function back."""
    global _original
    if _original is not None:
        _bind(_original)
        _original = None


def _bind(function: Any) -> None:
    from vllm.utils import network_utils

    network_utils.get_file_store_init_method = function
    for name in _USERS:  # which have it by from-import, where they are loaded already
        if user := sys.modules.get(name):
            user.get_file_store_init_method = function  # type: ignore[attr-defined]
