# SPDX-License-Identifier: Apache-2.0
"""Filling, converting, joining and rearranging, against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.device.ops.compare import ALL, VIEWS, same, values


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", [d for d in ALL if d != torch.float64], ids=str)
def test_cast(source: torch.dtype, target: torch.dtype) -> None:
    x = values(source, 4, 6, low=0)
    same(lambda t: t.to(target), x.abs() if source != torch.bool else x)


def test_a_cast_to_float64_gives_float32() -> None:
    """torch_npu's own rule: the device has no float64 arithmetic."""
    assert values(torch.int32, 3).npu().to(torch.float64).dtype == torch.float32


@pytest.mark.parametrize("view", VIEWS)
def test_copies_of_views(view: str) -> None:
    x = values(torch.float32, 6, 8)
    same(lambda t: VIEWS[view](t).contiguous(), x)
    same(lambda t: VIEWS[view](t).clone(), x)
    same(lambda t: VIEWS[view](t).to(torch.bfloat16), x)
    if view != "expanded":
        same(lambda t: VIEWS[view](t).copy_(VIEWS[view](t * 2)), x)
        same(lambda t: VIEWS[view](t).fill_(3), x)
        same(lambda t: VIEWS[view](t).zero_(), x)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_fill(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 6)
    same(lambda t: (torch.zeros_like(t), torch.ones_like(t), torch.full_like(t, 1)), x)
    same(lambda t: t.fill_(t.new_tensor(1)), x)


def test_creation() -> None:
    like = torch.zeros(1)
    same(lambda t: torch.arange(3, 17, 2, device=t.device), like)
    same(lambda t: torch.arange(0, 1, 0.1, device=t.device), like)
    same(lambda t: torch.arange(9, dtype=torch.int32, device=t.device), like)
    same(lambda t: torch.linspace(0, 1, 7, device=t.device), like, rtol=1e-6, atol=1e-6)
    same(lambda t: torch.eye(3, 5, device=t.device), like)
    same(lambda t: torch.full((2, 3), 7, device=t.device), like)
    same(lambda t: torch.tensor([[1, 2], [3, 4]], device=t.device), like)
    same(lambda t: torch.tril_indices(4, 4, device="cpu").to(t.device), like)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool]
)
def test_joining(dtype: torch.dtype) -> None:
    a, b = values(dtype, 4, 6), values(dtype, 4, 6, seed=1)
    same(lambda x, y: torch.cat([x, y], 1), a, b)
    same(lambda x, y: torch.cat([x.t(), y.t()]), a, b)
    same(lambda x, y: torch.cat([x, y[:0]]), a, b)
    same(lambda x, y: torch.stack([x, y], 1), a, b)
    same(lambda x, y: (torch.vstack([x, y]), torch.hstack([x, y])), a, b)
    same(lambda x: (x.split(2, 1), x.chunk(2), x.tensor_split(4, 1), x.unbind(1)), a)
    same(
        lambda x, y: torch.cat([x, y], 1, out=torch.empty(4, 12, dtype=dtype, device=x.device)),
        a,
        b,
    )


def test_mixed_cat() -> None:
    same(lambda x, y: torch.cat([x, y]), values(torch.float32, 3, 4), values(torch.bfloat16, 2, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_rearranging(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 6)
    same(lambda t: (t.repeat(2, 3), t.tile(2), t[None].expand(3, 4, 6).contiguous()), x)
    same(
        lambda t: (t.repeat_interleave(2, 0), t.repeat_interleave(3), t.repeat_interleave(2, 1)), x
    )
    same(lambda t: t.repeat_interleave(torch.tensor([1, 0, 2, 3], device=t.device), 0), x)
    same(lambda t: torch.repeat_interleave(torch.tensor([1, 0, 2], device=t.device)), x)
    same(lambda t: (t.flip(0), t.flip(0, 1), t.roll(1), t.roll((1, 2), (0, 1)), t.rot90()), x)
    same(lambda t: (t.triu(1), t.tril(-1), t.triu_(1)), x)
    same(lambda t: (t.permute(1, 0).reshape(-1), t.view(2, 2, 6).transpose(0, 2).contiguous()), x)
    same(lambda t: (t.unsqueeze(0).squeeze(0), t.flatten(), t.movedim(0, 1), t.unfold(1, 2, 2)), x)
    same(lambda t: (F.pad(t, (1, 2)), F.pad(t, (1, 0, 0, 2), value=3)), x)
    same(lambda t: torch.diagonal(t).clone(), x)
    same(lambda t: t.fill_diagonal_(3), x)
    same(lambda t: t.as_strided((3, 2), (6, 2), 1).contiguous(), x)


def test_padding_modes() -> None:
    x = values(torch.float32, 1, 2, 5)
    for mode in ("reflect", "replicate"):
        same(lambda t, mode=mode: F.pad(t, (1, 2), mode=mode), x)
        same(
            lambda t, mode=mode: F.pad(t[None], (1, 1, 1, 1), mode=mode),
            values(torch.float32, 1, 4, 5),
        )


def test_one_hot_and_meshgrid() -> None:
    i = torch.tensor([0, 3, 1])
    same(lambda t: F.one_hot(t, 5), i)
    same(lambda t: F.one_hot(t), i)
    same(lambda t: torch.meshgrid(t, t, indexing="ij"), i)


def test_items_and_printing() -> None:
    x = values(torch.float32, 3, 4)
    assert x.npu().sum().item() == x.sum().item()
    assert x.npu().tolist() == x.tolist()
    for t in (x, x.bfloat16(), x.long(), x > 0, x[0, 0], x[:0], values(torch.float32, 40, 50)):
        shown = "".join(repr(t.npu()).split())
        assert "device='npu:0'" in shown
        assert shown.replace(",device='npu:0'", "") == "".join(repr(t).split())
    assert bool((x.npu() == x.npu()).all())


def test_a_copy_of_a_shape_that_does_not_fit_fails_at_the_call() -> None:
    """And leaves the device usable."""
    target = torch.zeros(4, 8, device="npu")
    with pytest.raises(RuntimeError, match=r"aclnnInplaceCopy: The size of tensor a \(4\)"):
        target.copy_(torch.ones(5, 8, device="npu"))
    target.copy_(torch.ones(8, device="npu"))
    assert target.cpu().sum() == 32
