# SPDX-License-Identifier: Apache-2.0
"""Opens core's "requires Triton" gates: of Model Runner V2, and of its n-gram drafts.

Why: core decides by the module global `vllm.config.vllm.HAS_TRITON` whether MRV2 may run; this
platform has no Triton and replaces the kernels, so the question is asked of the wrong thing.
Only its copies in modules that ask are set: `vllm.triton_utils.HAS_TRITON`, which chooses kernels,
stays False.
Core versions: 0.30 to 0.32 (0.33 asks in Worker.__init__, see `open_gate`). Goes when core lets a
platform answer.
"""

from __future__ import annotations

import importlib

_CONFIG_GATE = "vllm.config.vllm"
_NGRAM_GATE = "vllm.v1.worker.gpu.spec_decode.ngram.speculator"  # from 0.32 on
_WORKER_GATES: tuple[str, ...] = ("vllm.v1.worker.gpu_worker", _NGRAM_GATE)  # the first: 0.33


def open_gate() -> None:
    """Let the configuration choose MRV2 without Triton. Idempotent; no device use."""
    importlib.import_module(_CONFIG_GATE).__dict__["HAS_TRITON"] = True


def open_worker_gate() -> None:
    """The same for what asks in a worker, where a core has it. Idempotent."""
    for name in _WORKER_GATES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if "HAS_TRITON" in module.__dict__:
            module.__dict__["HAS_TRITON"] = True
