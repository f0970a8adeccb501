# SPDX-License-Identifier: Apache-2.0
"""Bring-up probes of a device: what this plugin assumes of CANN, tried on the device itself.

Each runs in a child of its own (`python -m` this module), since one that fails may leave a device
that nothing else runs on. torch is imported there and nowhere else. A probe says what it saw;
what follows from that is `rules`'.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend_mrv2.cli.doctor.child import ANSWER, ask

ROUNDS = 50
# Of a stream, by matmuls that copies queue behind: long enough that the host runs ahead.
_QUEUE_DEPTH = 8
_MATRIX_SIZE = 256
_COPY_ELEMENTS = 4096
# More streams than any device documents; creating ends here at the latest.
_MOST_STREAMS = 4096
# Of FIA in float16 against float32 on the host.
_FIA_TOLERANCE = 5e-3


@dataclass(frozen=True)
class DeviceProbe:
    """What one probe saw. holds: None where it could not be tried; error: why not."""

    name: str
    holds: bool | None
    saw: str = ""
    error: str = ""
    seconds: float = 0.0
    measured: Mapping[str, Any] = field(default_factory=dict)


Answer = tuple[bool, str, dict[str, Any]]  # holds, what was seen in words, in numbers


def _busy(torch: Any) -> Callable[[], None]:
    """A function that queues matmuls on the current stream."""
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE, device="npu")
    product = torch.empty_like(matrix)

    def queue() -> None:
        for _ in range(_QUEUE_DEPTH):
            torch.mm(matrix, matrix, out=product)

    return queue


def pinned_ordering() -> Answer:
    """Whether a copy from pinned memory runs in its place in the stream.

    The kernel before it must see the old data and the kernel after it the new.
    """
    import torch

    queue = _busy(torch)
    target = torch.zeros(_COPY_ELEMENTS, device="npu")
    wrong, blocked_us = 0, []
    for number in range(1, ROUNDS + 1):
        source = torch.full((_COPY_ELEMENTS,), float(number), pin_memory=True)
        queue()
        before = target.clone()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        blocked_us.append((time.perf_counter() - began) * 1e6)
        after = target.clone()
        torch.npu.synchronize()
        right = bool((before == number - 1).all()) and bool((after == number).all())
        wrong += not right
    # Where a copy reads its source only when it runs, being in order is no accident of being early.
    source = torch.zeros(_COPY_ELEMENTS, pin_memory=True)
    queue()
    target.copy_(source, non_blocking=True)
    source.fill_(-1.0)
    torch.npu.synchronize()
    reads_late = bool((target == -1.0).any())
    median_us = sorted(blocked_us)[ROUNDS // 2]
    return (
        wrong == 0,
        f"{ROUNDS - wrong} of {ROUNDS} copies were in order; each took {median_us:.0f} us of the "
        f"host and read its source {'when it ran' if reads_late else 'at once'}",
        {
            "rounds": ROUNDS,
            "wrong": wrong,
            "host_blocked_us_median": median_us,
            "reads_source_late": reads_late,
        },
    )


def pinned_reuse() -> Answer:
    """Whether freed pinned memory is kept until the copy that reads it has run."""
    import torch

    queue = _busy(torch)
    targets = []
    for number in range(ROUNDS):
        queue()
        source = torch.full((_COPY_ELEMENTS,), float(number), pin_memory=True)
        targets.append(source.to("npu", non_blocking=True))
        del source
        torch.full((_COPY_ELEMENTS,), -1.0, pin_memory=True)  # takes the block if it is free
    torch.npu.synchronize()
    wrong = sum(not bool((target == n).all()) for n, target in enumerate(targets))
    return (
        wrong == 0,
        f"{ROUNDS - wrong} of {ROUNDS} copies read what they were given",
        {"rounds": ROUNDS, "wrong": wrong},
    )


def fia_lengths() -> Answer:
    """Whether FIA takes lengths as this plugin gives them: cumulative queries, KV per request.

    Decode and prefill with lengths around a block's end, against float32 on the host.
    """
    import torch
    import torch_npu

    heads, kv_heads, size, block, blocks = 4, 2, 64, 128, 3
    query_lens, kv_lens = [1, 1, 1, 5, 130], [1, 128, 129, 5, 300]
    generator = torch.Generator().manual_seed(0)
    tokens, requests = sum(query_lens), len(kv_lens)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).to(torch.float16)

    query = drawn(tokens, heads, size)
    caches = [drawn(requests * blocks + 1, block, kv_heads * size) for _ in range(2)]
    table = torch.arange(1, requests * blocks + 1, dtype=torch.int32).view(requests, blocks)
    ends = [sum(query_lens[: i + 1]) for i in range(requests)]
    found, _ = torch_npu.npu_fused_infer_attention_score(
        query.npu(),
        caches[0].npu(),
        caches[1].npu(),
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=kv_lens,
        block_table=table.npu(),
        block_size=block,
        input_layout="TND",
        num_heads=heads,
        num_key_value_heads=kv_heads,
        scale=size**-0.5,
        sparse_mode=3,
        atten_mask=torch.ones(2048, 2048, dtype=torch.int8).triu_(1).npu(),
    )
    found = found.float().cpu()
    errors = []
    for request, (end, count, length) in enumerate(zip(ends, query_lens, kv_lens, strict=True)):
        rows = [c[table[request].long()].reshape(-1, kv_heads, size)[:length] for c in caches]
        key, value = (r.float().repeat_interleave(heads // kv_heads, dim=1) for r in rows)
        asked = query[end - count : end].float()
        scores = torch.einsum("qhd,khd->hqk", asked, key) * size**-0.5
        hidden = torch.ones(count, length).triu_(length - count + 1).bool()
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        wanted = torch.einsum("hqk,khd->qhd", weights, value)
        errors.append(float((found[end - count : end] - wanted).abs().max()))
    worst = max(errors)
    return (
        worst <= _FIA_TOLERANCE,
        f"largest difference {worst:.1e} over KV lengths {kv_lens}, {_FIA_TOLERANCE:.0e} allowed",
        {"query_lens": query_lens, "kv_lens": kv_lens, "largest_differences": errors},
    )


def stream_budget() -> Answer:
    """How many streams can be created: each captured attention graph holds some."""
    import torch
    import torch_npu  # noqa: F401

    from vllm_ascend_mrv2.graph.budget import DEVICE_STREAMS, RESERVED_STREAMS

    torch.npu.init()
    torch.npu.set_device(0)
    library = ctypes.CDLL("libascendcl.so")
    streams: list[ctypes.c_void_p] = []
    while len(streams) < _MOST_STREAMS:
        stream = ctypes.c_void_p()
        if library.aclrtCreateStream(ctypes.byref(stream)) != 0:
            break
        streams.append(stream)
    for stream in streams:
        library.aclrtDestroyStream(stream)
    wanted = DEVICE_STREAMS - RESERVED_STREAMS
    return (
        len(streams) >= wanted,
        f"{len(streams)} streams could be created, {wanted} are counted on for graphs",
        {"created": len(streams), "counted_on": wanted},
    )


def hccl() -> Answer:
    """Whether the HCCL backend is there and reduces, in a world of one."""
    import torch
    import torch.distributed as dist

    torch.npu.set_device(0)
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    values = torch.arange(8, dtype=torch.float32, device="npu")
    dist.all_reduce(values)
    torch.npu.synchronize()
    right = values.cpu().tolist() == [float(n) for n in range(8)]
    dist.destroy_process_group()
    said = "all_reduce in a world of one gave " + ("its input" if right else "something else")
    return right, said, {"world_size": 1}


PROBES: dict[str, Callable[[], Answer]] = {
    probe.__name__: probe
    for probe in (pinned_ordering, pinned_reuse, fia_lengths, stream_budget, hccl)
}


def run(environ: Mapping[str, str]) -> tuple[DeviceProbe, ...]:
    """All probes, each in its own process, one after the other."""
    found = []
    for name in PROBES:
        began = time.monotonic()
        answer = ask("-m", __name__, name, environ=environ)
        seconds = round(time.monotonic() - began, 1)
        if isinstance(answer, str):
            found.append(DeviceProbe(name, None, error=answer, seconds=seconds))
        else:
            holds, saw, measured = answer
            found.append(DeviceProbe(name, holds, saw, "", seconds, measured))
    return tuple(found)


if __name__ == "__main__":
    print(ANSWER + json.dumps(PROBES[sys.argv[1]]()))
