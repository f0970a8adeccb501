# SPDX-License-Identifier: Apache-2.0
"""Opens core's "Model Runner V2 requires Triton" gate.

Why: core decides by the module global `vllm.config.vllm.HAS_TRITON` whether MRV2 may run; this
platform has no Triton and replaces the kernels, so the question is asked of the wrong thing.
Only that one global is set: `vllm.triton_utils.HAS_TRITON`, which chooses kernels, stays False.
Core versions: 0.30 to 0.32 (0.33 asks in Worker.__init__, see `open_gate`). Goes when core lets a
platform answer.
"""

from __future__ import annotations

import importlib

_GATES: tuple[str, ...] = ("vllm.config.vllm", "vllm.v1.worker.gpu_worker")


def open_gate() -> None:
    """Let the configuration choose MRV2 without Triton. Idempotent; no device use."""
    importlib.import_module(_GATES[0]).__dict__["HAS_TRITON"] = True


def open_worker_gate() -> None:
    """The same for cores whose worker asks (0.33). Idempotent."""
    module = importlib.import_module(_GATES[1])
    if "HAS_TRITON" in module.__dict__:
        module.__dict__["HAS_TRITON"] = True
