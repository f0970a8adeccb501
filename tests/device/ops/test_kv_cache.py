# SPDX-License-Identifier: Apache-2.0
"""Writing the paged KV cache."""

from __future__ import annotations

import pytest
import torch
import torch_npu

from tests.device.ops.compare import values

BLOCKS, SIZE, HEADS, HEAD = 6, 16, 2, 32


def caches(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (BLOCKS, SIZE, HEADS, HEAD)
    return torch.zeros(shape, dtype=dtype).npu(), torch.zeros(shape, dtype=dtype).npu()


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_go_to_their_slots(dtype: torch.dtype, slot_dtype: torch.dtype) -> None:
    key, value = values(dtype, 4, HEADS, HEAD), values(dtype, 4, HEADS, HEAD, seed=1)
    key_cache, value_cache = caches(dtype)
    slots = torch.tensor([3, 40, -1, 95], dtype=slot_dtype)
    torch_npu.npu_scatter_pa_kv_cache(
        key.npu(), value.npu(), key_cache, value_cache, slots.npu(), cache_mode="Norm"
    )
    for cache, source in ((key_cache, key), (value_cache, value)):
        want = torch.zeros(BLOCKS * SIZE, HEADS, HEAD, dtype=dtype)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                want[slot] = source[token]
        assert torch.equal(cache.cpu().view_as(want), want)


def test_nz_layout() -> None:
    key = values(torch.float16, 3, HEADS, HEAD)
    cache = torch.zeros(BLOCKS, HEADS * HEAD // 16, SIZE, 16, dtype=torch.float16).npu()
    other = torch.zeros_like(cache)
    torch_npu.npu_scatter_pa_kv_cache(
        key.npu(), key.npu(), cache, other, torch.tensor([0, 17, 95]).npu()
    )
    got = cache.cpu()
    for token, slot in enumerate((0, 17, 95)):
        assert torch.equal(got[slot // SIZE, :, slot % SIZE].flatten(), key[token].flatten())
    assert int((got != 0).sum()) == int((key != 0).sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_mode": "Other"}, "cache_mode 'Other' is not emulated"),
        ({"value_dtype": torch.float16}, "key, value and both caches have one dtype"),
        ({"heads": 1}, "key is .tokens, kv_heads, D."),
        ({"slots": [1, 2, 3]}, "slot_mapping is int32 or int64 with one value for each token"),
        ({"slot_dtype": torch.float32}, "slot_mapping is int32 or int64"),
        ({"strided": True}, "every tensor is contiguous"),
    ],
)
def test_wrong_calls_fail_where_they_are_made(change: dict, message: str) -> None:
    key = values(torch.float32, 4, change.get("heads", HEADS), HEAD).npu()
    key_cache, value_cache = caches()
    if change.get("strided"):
        # One interleaved buffer for keys and values, as on other devices.
        key_cache = torch.zeros(BLOCKS, 2, SIZE, HEADS, HEAD).npu()[:, 0]
    slots = (
        torch.tensor(change.get("slots", [1, 2, 3, 4]))
        .to(change.get("slot_dtype", torch.int32))
        .npu()
    )
    with pytest.raises(RuntimeError, match="aclnnScatterPaKvCache: " + message):
        torch_npu.npu_scatter_pa_kv_cache(
            key, key.to(change.get("value_dtype", torch.float32)), key_cache, value_cache, slots,
            cache_mode=change.get("cache_mode", "Norm"),
        )  # fmt: skip


def test_gather_gives_back_what_was_written() -> None:
    key = values(torch.float32, 20, HEADS, HEAD)
    key_cache, value_cache = caches()
    table = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    slots = [table[0, i // SIZE] * SIZE + i % SIZE for i in range(18)]
    slots += [table[1, 0] * SIZE + i for i in range(2)]
    torch_npu.npu_scatter_pa_kv_cache(
        key.npu(),
        (key * 2).npu(),
        key_cache,
        value_cache,
        torch.tensor(slots).npu(),
        cache_mode="Norm",
    )
    out, double = torch.zeros_like(key).npu(), torch.zeros_like(key).npu()
    lengths = torch.tensor([18, 2], dtype=torch.int32).npu()
    torch_npu.npu_gather_pa_kv_cache(
        key_cache, value_cache, table.npu(), lengths, key=out, value=double
    )
    assert torch.equal(out.cpu(), key)
    assert torch.equal(double.cpu(), key * 2)
