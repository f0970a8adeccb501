# SPDX-License-Identifier: Apache-2.0
"""Keeps core's kernel warm-up out of this platform's start-up.

Why: `gpu_worker.kernel_warmup` warms kernels of CUDA and ROCm only, and on the way imports model
code that needs torchvision. The worker's own warm-up steps around it are kept.
Core versions: 0.30 to 0.33. Goes when core asks the platform before it warms kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def skipped() -> Iterator[None]:
    """Within this block the worker's kernel warm-up does nothing; afterwards it is core's again."""
    from vllm.v1.worker import gpu_worker

    original = gpu_worker.kernel_warmup

    def no_warmup(worker: Any, **kwargs: Any) -> None:
        return None

    gpu_worker.kernel_warmup = no_warmup
    try:
        yield
    finally:
        gpu_worker.kernel_warmup = original
