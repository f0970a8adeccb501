# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by index and mask, with results whose shape depends on data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.device.ops.compare import same, values

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def written(index: Callable[[torch.Tensor], object], value: object) -> Callable[..., torch.Tensor]:
    """A function that writes `value` to a copy of its argument at `index(argument)`."""

    def write(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        at = index(x)
        x[at] = value.to(x.device) if isinstance(value, torch.Tensor) else value  # type: ignore[index]
        return x

    return write


def at(*positions: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.tensor(positions, dtype=torch.int64, device=x.device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads(dtype: torch.dtype) -> None:
    x = values(dtype, 5, 6, 2)
    for index in (at(1, 3, 0), at(-1), at(), at(2, 2)):
        same(lambda t, index=index: (t[index(t)], t[:, index(t)], t[..., index(t) % 2]), x)
    same(lambda t: t[at(1, 2)(t), at(0, 5)(t)], x)
    same(lambda t: t[at(1, 2)(t)[:, None], at(0, 5)(t)], x)
    same(lambda t: (t[1], t[1:3], t[:, 2], t[..., -1], t[:, ::2], t[None, 1]), x)
    same(lambda t: t.index_select(1, at(0, 3, 3)(t)), x)
    same(lambda t: t.index_select(1, at(0, 3)(t).int()), x)
    same(lambda t: t.index_select(1, at()(t)), x)
    same(lambda t: t.gather(1, torch.zeros(5, 2, 2, dtype=torch.int64, device=t.device)), x)
    same(lambda t: torch.take(t, at(0, 7)(t)), x)
    same(lambda t: torch.take_along_dim(t, at(0, 2)(t).view(1, 2, 1), 1), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks(dtype: torch.dtype) -> None:
    x = values(dtype, 5, 6)
    mask = values(torch.float32, 5, 6) > 0
    none, every, rows = mask & False, mask | True, mask.any(1) & mask[:, 0]
    for m in (mask, none, every, rows, rows & False):
        same(lambda t, m: t[m], x, m)
        same(written(lambda t, m=m: m.to(t.device), 1), x)
        same(lambda t, m: t.masked_fill(m if m.dim() == 2 else m[:, None], 1), x, m)
    same(lambda t, m: t.masked_select(m), x, mask)
    same(lambda t, m: t.masked_select(m[:, :1]), x, mask)
    same(lambda t, m: t.masked_select(m), x, none)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool], ids=str)
def test_writes(dtype: torch.dtype) -> None:
    x = values(dtype, 5, 6)
    source = values(dtype, 3, 6, seed=1)
    same(written(at(1, 3, 0), source), x)
    same(written(at(1, 3, 0), 2), x)
    same(written(at(), 2), x)
    same(written(at(), source[:0]), x)
    same(written(lambda t: (slice(None), at()(t)), 2), x)
    same(written(lambda t: (slice(None), at(0, 2)(t)), 2), x)
    same(written(lambda t: (at(0, 2)(t), at(1, 1)(t)), 2), x)
    same(written(lambda t: slice(1, 3), 2), x)
    same(lambda t, s: t.index_put((at(1, 1, 0)(t),), s, accumulate=True), x, source)
    same(lambda t, s: t.index_put_((at()(t),), s[:0], accumulate=True), x, source)
    same(lambda t, s: t.index_add(0, at(1, 3, 0)(t), s), x, source)
    same(lambda t, s: t.index_add_(0, at(1, 1, 0)(t), s, alpha=2), x, source)
    same(lambda t, s: t.index_copy(0, at(1, 3, 0)(t), s), x, source)
    same(lambda t, s: t.index_copy_(0, at(1, 3, 0)(t), s), x, source)
    same(lambda t: t.index_fill(1, at(1, 3)(t), 2), x)
    same(lambda t: t.index_fill_(1, at(1, 3)(t), 2), x)
    same(lambda t: t.index_fill_(1, at()(t), 2), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32], ids=str)
def test_scatter(dtype: torch.dtype) -> None:
    x, source = values(dtype, 5, 6), values(dtype, 5, 3, seed=1)
    index = torch.stack(
        [torch.randperm(6, generator=torch.Generator().manual_seed(i))[:3] for i in range(5)]
    )
    same(lambda t, i, s: t.scatter(1, i, s), x, index, source)
    same(lambda t, i, s: t.scatter_(1, i, s), x, index, source)
    same(lambda t, i: t.scatter(1, i, 2), x, index)
    same(lambda t, i: t.scatter_(1, i, 2), x, index)
    same(lambda t, i, s: t.scatter_add(1, i * 0, s), x, index, source)
    same(lambda t, i, s: t.scatter_add_(1, i, s), x, index, source)
    same(lambda t, i, s: t.scatter(1, i, s, reduce="add"), x, index, source)
    for reduce in ("sum", "amax", "amin", "prod"):
        same(lambda t, i, s, r=reduce: t.scatter_reduce(1, i, s, r), x, index, source)
    same(lambda t, i: t.gather(1, i), x, index)


def test_results_whose_shape_depends_on_data() -> None:
    x = values(torch.int64, 40, low=0, high=9)
    same(torch.nonzero, x)
    same(lambda t: t.view(5, 8).nonzero(as_tuple=True), x)
    same(lambda t: (t * 0).nonzero(), x)
    same(lambda t: t[0].nonzero(), x)
    same(torch.unique, x)
    same(lambda t: torch.unique(t, return_inverse=True, return_counts=True), x)
    same(lambda t: torch.unique(t, return_counts=True), x)
    same(lambda t: torch.unique_consecutive(t, return_counts=True), x)
    same(lambda t: torch.unique(t.view(20, 2), dim=0), x)
    same(lambda t: torch.unique(t[:0]), x)
    same(lambda t: torch.argwhere(t > 4), x)
    same(lambda t: torch.isin(t, torch.tensor([1, 5], device=t.device)), x)


def test_embedding() -> None:
    weight = values(torch.float32, 9, 4)
    index = torch.tensor([[1, 8], [0, 1]])
    same(F.embedding, index, weight)
    same(lambda i, w: F.embedding(i.int(), w), index, weight)
    same(lambda i, w: F.embedding(i[:0], w), index, weight)
    same(lambda i, w: F.embedding(i, w.bfloat16()), index, weight)
