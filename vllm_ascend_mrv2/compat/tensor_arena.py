# SPDX-License-Identifier: Apache-2.0
"""Whether a start-up asks for core's shared-memory tensor arena, which older cores do not have.

Reason, core versions and when this goes: `differences.TENSOR_ARENA`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def is_asked_for(config: VllmConfig) -> bool:
    """Never on a core that has no such option."""
    parallel = config.parallel_config
    return hasattr(parallel, "enable_shm_tensor_arena") and bool(parallel.enable_shm_tensor_arena)
