# SPDX-License-Identifier: Apache-2.0
"""kernels/lora.py against each token's own product, written out. Tokens of any mix of adapters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.kernel_check import KernelCheck
from tests.helpers.launches import Launches
from vllm_ascend_mrv2.compat import adapter_weights

SLOTS, RANK, WIDTH, VOCAB = 3, 4, 24, 50
IDS = [7, None, 9]  # adapter 7 is in slot 0, adapter 9 in slot 2


def made(check: KernelCheck, ids: list[int], rows: list[int]) -> Any:
    """A wrapper that knows a step's adapters."""
    from vllm_ascend_mrv2.kernels.lora import PunicaWrapper

    wrapper = PunicaWrapper(64, 16, check.device)
    mapping = SimpleNamespace(index_mapping=tuple(ids), prompt_mapping=tuple(rows))
    wrapper.update_metadata(mapping, IDS, SLOTS + 1, VOCAB)
    return wrapper


def weights(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def slot_of(adapter: int) -> int | None:
    return IDS.index(adapter) if adapter else None


def wanted(
    y: torch.Tensor, x: torch.Tensor, ids: list[int], a: torch.Tensor, b: torch.Tensor, scale: float
) -> torch.Tensor:
    out = y.clone()
    for row, adapter in enumerate(ids):
        if (slot := slot_of(adapter)) is not None:
            out[row] += scale * (b[slot, 0] @ (a[slot, 0] @ x[row]))
    return out


adapters = st.lists(st.sampled_from([0, 7, 9]), min_size=1, max_size=12)


@given(ids=adapters, case=st.integers(0, 2**32 - 1), padding=st.integers(0, 3))
def test_linear(check: KernelCheck, ids: list[int], case: int, padding: int) -> None:
    """Three slices of columns; rows past the batch, as a graph pads it, stay as they are."""
    rng = np.random.default_rng(case)
    wrapper = made(check, ids, ids)
    slices = (8, 16, 4)
    x, y = weights(rng, len(ids) + padding, WIDTH), weights(rng, len(ids) + padding, sum(slices))
    a = tuple(weights(rng, SLOTS, 1, RANK, WIDTH) for _ in slices)
    b = tuple(weights(rng, SLOTS, 1, size, RANK) for size in slices)
    ours, on_device = check.place(y.clone()), check.place((x, a, b))
    with Launches(waits=False) as launches:
        wrapper.add_lora_linear(ours, *on_device, 1.5, slices)
    begin, expected = 0, y.clone()
    for one_a, one_b, size in zip(a, b, slices, strict=True):
        part = slice(begin, begin + size)
        expected[:, part] = wanted(y[:, part], x, ids, one_a, one_b, 1.5)
        begin += size
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-5, atol=1e-5)
    if not any(ids):
        assert launches.names == [], "a batch without adapters computes none"


@given(ids=adapters, case=st.integers(0, 2**32 - 1))
def test_embedding_and_logits(check: KernelCheck, ids: list[int], case: int) -> None:
    rng = np.random.default_rng(case)
    wrapper = made(check, [*ids, 0], ids)
    x, y = weights(rng, len(ids), WIDTH), weights(rng, len(ids), VOCAB)
    a, b = weights(rng, SLOTS, 1, RANK, WIDTH), weights(rng, SLOTS, 1, VOCAB, RANK)
    ours = check.place(y.clone())
    wrapper.add_lora_logits(ours, *check.place((x, a, b)), 0.5)
    torch.testing.assert_close(ours.cpu(), wanted(y, x, ids, a, b, 0.5), rtol=1e-5, atol=1e-5)
    tokens = torch.from_numpy(rng.integers(0, VOCAB, len(ids)))
    table, hidden = weights(rng, SLOTS * VOCAB, RANK), weights(rng, len(ids), WIDTH)
    expand = weights(rng, SLOTS, 1, WIDTH, RANK)
    offsets = wrapper._embeddings_indices[: len(ids)].cpu()
    shrunk, ours = table[tokens + offsets], check.place(hidden.clone())
    wrapper.add_lora_embedding(ours, check.place(shrunk), check.place(expand), add_input=True)
    expected = hidden.clone()
    for row, adapter in enumerate(ids):
        if (slot := slot_of(adapter)) is not None:
            expected[row] += expand[slot, 0] @ table[slot * VOCAB + tokens[row]]
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_adapters_of_bfloat16_layers(check: KernelCheck) -> None:
    rng = np.random.default_rng(3)
    ids = [7, 0, 9, 9]
    wrapper = made(check, ids, ids)
    x, y = weights(rng, 4, WIDTH), weights(rng, 4, WIDTH)
    a, b = weights(rng, SLOTS, 1, RANK, WIDTH), weights(rng, SLOTS, 1, WIDTH, RANK)
    low = [tensor.bfloat16() for tensor in (x, a, b)]
    ours = check.place(y.bfloat16())
    wrapper.add_lora_linear(
        ours, check.place(low[0]), (check.place(low[1]),), (check.place(low[2]),), 1.0, (WIDTH,)
    )
    rounded_x, rounded_a, rounded_b = (tensor.float() for tensor in low)
    expected = wanted(y.bfloat16().float(), rounded_x, ids, rounded_a, rounded_b, 1.0)
    torch.testing.assert_close(ours.cpu().float(), expected, rtol=2e-2, atol=2e-1)


def test_what_belongs_to_a_classification_head_is_refused(check: KernelCheck) -> None:
    nothing: Any = None
    with pytest.raises(NotImplementedError, match="modules_to_save"):
        made(check, [7], [7]).apply_lora_full_linear(nothing, nothing, nothing, nothing, nothing)


class _Copies(TorchDispatchMode):
    """(source, target) devices of each `copy_`."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "copy_":
            self.devices.append((args[1].device.type, args[0].device.type))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "slices"),
    [
        ("RowParallelLinearWithLoRA", None),
        ("QKVParallelLinearWithLoRA", None),
        ("MergedQKVParallelLinearWithLoRA", 3),
        ("VocabParallelEmbeddingWithLoRA", None),
        ("LogitsProcessorWithLoRA", None),
    ],
)
def test_core_copies_an_adapter_from_the_layers_own_device(kind: str, slices: int | None) -> None:
    """An asynchronous copy of core's reads no memory of the host, in any kind of layer."""
    from vllm.lora import layers

    owner = getattr(layers, kind)
    linear = "Linear" in kind
    shape = (2, 1, WIDTH, WIDTH) if linear or "Logits" in kind else (2, WIDTH, WIDTH)
    stacked = tuple(torch.zeros(shape, device="meta") for _ in range(slices or 1))
    layer = SimpleNamespace(
        lora_a_stacked=stacked if linear else stacked[0],
        lora_b_stacked=(torch.zeros(2, 1, WIDTH, WIDTH, device="meta"),) * (slices or 1),
        n_slices=slices or 1,
        tp_size=1,
        reset_lora=lambda index: None,
    )
    if not linear:
        layer.lora_b_stacked = layer.lora_b_stacked[0]
    a, b = torch.ones(RANK, WIDTH), torch.ones(WIDTH, RANK)
    given = ([a, None, a], [b, None, b]) if slices else (a, b)
    own = owner.set_lora
    adapter_weights.install()
    try:
        adapter_weights.install()
        with _Copies() as copies:
            owner.set_lora(layer, 1, *given)
    finally:
        adapter_weights.uninstall()
    assert copies.devices == [("meta", "meta")] * (4 if slices else 2)
    assert owner.set_lora is own
