# SPDX-License-Identifier: Apache-2.0
"""A program: serve requests in this process and report what was allocated as pinned host memory.

Run by test_pinned_memory.py in a process of its own (`python -m tests.engine.pinning_probe MODEL
RESULT`), since the counts are of the whole process. Two counters of different origin: torch_npu's
own host allocator, and the device library's, which no caller can go around.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def device_library_counter() -> Callable[[], int] | None:
    """The emulated device's count of pinned allocations; None where the library has no such API."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if Path(path).name.startswith("libascendcl.so"):
            counter = getattr(ctypes.CDLL(path), "emu_pinned_allocations", None)
            if counter is not None:
                counter.restype = ctypes.c_uint64
                return lambda: int(counter())
    return None


def host_allocations() -> int:
    """Requests to torch_npu's host allocator since the start, whether new or reused memory."""
    return int(torch.npu.host_memory_stats()["active_requests.allocated"])


def serve(model: str) -> int:
    """Requests of every kind that brings host data to the device or back; tokens produced."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        gpu_memory_utilization=0.1,
        num_gpu_blocks_override=24,
        block_size=16,
        enable_prefix_caching=True,
    )
    lengths = range(1, 161, 20)
    prompts = [{"prompt_token_ids": [(7 * n + j) % 256 for j in range(n)]} for n in lengths]
    kinds = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logprobs=3, prompt_logprobs=2),
        SamplingParams(temperature=0.8, seed=7),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01),
        SamplingParams(temperature=1.0, seed=1, n=2, logprobs=1),
        SamplingParams(temperature=0.5, repetition_penalty=1.2, presence_penalty=0.3),
        SamplingParams(temperature=0, logit_bias={65: 4.0}, min_tokens=4),
        SamplingParams(temperature=0, bad_words=["the"], stop=["\n\n"]),
    ]
    for params in kinds:
        params.max_tokens = 20
    outputs = llm.generate(prompts, kinds, use_tqdm=False)
    return sum(len(one.token_ids) for output in outputs for one in output.outputs)


def main(model: str, result: Path) -> None:
    import torch_npu  # noqa: F401

    torch.npu.set_device(0)
    device_count = device_library_counter()
    before = (host_allocations(), device_count() if device_count else None)
    tokens = serve(model)
    after = (host_allocations(), device_count() if device_count else None)
    # The counters must be able to see what they are to find.
    torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    control = (host_allocations(), device_count() if device_count else None)
    result.write_text(
        json.dumps(
            {
                "tokens": tokens,
                "host_allocator": [before[0], after[0], control[0]],
                "device_library": [before[1], after[1], control[1]],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
