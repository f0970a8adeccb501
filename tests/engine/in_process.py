# SPDX-License-Identifier: Apache-2.0
"""An engine in the test's own process, the way to its runner, and the adversarial scheduler around
a part of its life.

Small defaults; no test and no load here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.emulated import acl


def core_of(llm: Any) -> Any:
    """The engine core behind an LLM of this process."""
    return llm.llm_engine.engine_core.engine_core


def runner_of(llm: Any) -> Any:
    """The model runner behind an LLM of this process."""
    return core_of(llm).model_executor.driver_worker.worker.model_runner


def shut_down(llm: Any) -> None:
    """End an LLM's engine once: left to itself its client does so again when it is collected, and
    takes the process groups of the next engine with it.
    """
    llm.llm_engine.engine_core.shutdown()


@contextmanager
def engine(checkpoint: Path, **arguments: Any) -> Iterator[Any]:
    """An engine in this process, given back its memory afterwards."""
    from vllm import LLM

    before_bytes = torch.npu.memory_allocated()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        defaults = {
            "dtype": "float32",
            "max_model_len": 320,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 96,
            "block_size": 16,
            "num_gpu_blocks_override": 44,
            "gpu_memory_utilization": 0.1,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
        }
        llm = LLM(str(checkpoint), **{**defaults, **arguments})
        try:
            yield llm
        finally:
            shut_down(llm)
    # Core keeps an engine's tables to the end of the process (8 MB for SmolLM2's vocabulary); not
    # the weights, the KV cache (7 MB here) or a graph's memory, which the next engine of this
    # process would see come back while it measures.
    left_bytes = torch.npu.memory_allocated() - before_bytes
    assert left_bytes < 16 << 20, f"{left_bytes >> 20} MiB of the device are still held"


@contextmanager
def adversarial(seed: int) -> Iterator[None]:
    """Streams are delayed against each other by `seed`."""
    torch.npu.synchronize()
    acl().emu_set_schedule_seed(seed, 1)
    try:
        yield
    finally:
        torch.npu.synchronize()
        acl().emu_set_schedule_seed(0, 0)
