# SPDX-License-Identifier: Apache-2.0
"""Reductions and scans against the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.device.ops.compare import FLOATS, VIEWS, same, values

DTYPES = (*FLOATS, torch.float64, torch.int64, torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "max", "min", "any", "all"])
def test_full(name: str, dtype: torch.dtype) -> None:
    same(getattr(torch, name), values(dtype, 4, 6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "amax", "amin", "any", "all", "argmax", "argmin"])
def test_one_dim(name: str, dtype: torch.dtype) -> None:
    x = values(dtype, 4, 6, seed=3)
    if name.startswith("arg") and not dtype.is_floating_point:
        x = torch.randperm(24, generator=torch.Generator().manual_seed(0)).view(4, 6).to(dtype)
    function = getattr(torch, name)
    for dim in (0, 1, -1):
        same(lambda t, dim=dim: function(t, dim), x)
        same(lambda t, dim=dim: function(t, dim, keepdim=True), x)
    same(lambda t: function(t.t(), 0), x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["mean", "var", "std", "norm", "logsumexp", "nansum"])
def test_float(name: str, dtype: torch.dtype) -> None:
    x = values(dtype, 4, 6)
    function = getattr(torch, name)
    same(lambda t: function(t, dim=-1), x)
    same(lambda t: function(t, dim=(0, 1), keepdim=True), x)
    if name != "logsumexp":
        same(function, x)


@pytest.mark.parametrize("name", ["max", "min", "median", "cummax", "cummin"])
def test_values_and_indices(name: str) -> None:
    x = torch.randperm(24, generator=torch.Generator().manual_seed(1)).view(4, 6).float()
    same(lambda t: tuple(getattr(torch, name)(t, dim=1)), x)


@pytest.mark.parametrize("view", [v for v in VIEWS if v != "empty"])
def test_views(view: str) -> None:
    same(lambda t: (VIEWS[view](t).sum(), VIEWS[view](t).mean(), VIEWS[view](t).max()),
         values(torch.float32, 6, 8))  # fmt: skip


def test_empty_and_dtype_arguments() -> None:
    x = values(torch.float32, 4, 6)
    same(lambda t: (t[:0].sum(), t[:0].sum(0), t[:0].any(), t[:0].all()), x)
    same(lambda t: (t.sum(dtype=torch.float64), t.sum(1, dtype=torch.float16)), x)
    same(lambda t: t.bfloat16().sum(-1, dtype=torch.float32), x)
    same(lambda t: (t > 0).sum(), x)
    same(lambda t: (t > 0).sum(1), x)
    same(lambda t: (torch.count_nonzero(t > 0), (t > 0).float().mean()), x)
    same(lambda t: torch.var_mean(t, dim=1), x)
    same(lambda t: torch.std_mean(t, dim=1, correction=0), x)
    same(lambda t: (torch.linalg.vector_norm(t, 1, dim=1), t.norm(2, 1), t.norm(float("inf"))), x)
    same(torch.aminmax, x)
    same(lambda t: torch.aminmax(t, dim=1), x)
    same(lambda t: torch.trace(t), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
def test_scans(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 6)
    same(lambda t: (t.cumsum(1), t.cumsum(0), t.cumprod(1)), x)
    same(lambda t: t.cumsum(1, dtype=torch.float32), x)
    same(lambda t: torch.cumsum(t.t(), 0), x)
    same(lambda t: t.cumsum_(1), x)
    same(lambda t: torch.diff(t, dim=1), x)
    same(lambda t: t[:0].cumsum(0), x)


def test_counts() -> None:
    i = values(torch.int64, 30, low=0, high=9)
    same(torch.bincount, i)
    same(lambda t: torch.bincount(t, minlength=20), i)
    same(lambda t, w: torch.bincount(t, w), i, values(torch.float32, 30))
    same(lambda t: torch.histc(t, 8, -2, 2), values(torch.float32, 50))
