# SPDX-License-Identifier: Apache-2.0
"""Ordering, search, and the sampling filters built on it."""

from __future__ import annotations

import pytest
import torch
import torch_npu

from tests.device.ops.compare import same, values


def distinct(dtype: torch.dtype, rows: int, columns: int) -> torch.Tensor:
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0))
    return order.view(rows, columns).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32], ids=str
)
def test_sort_and_topk(dtype: torch.dtype) -> None:
    x = distinct(dtype, 4, 9)
    for dim in (0, 1):
        for descending in (False, True):
            same(lambda t, d=dim, o=descending: tuple(t.sort(d, o)), x)
            same(lambda t, d=dim, o=descending: t.argsort(d, o), x)
    same(lambda t: tuple(t.topk(3)), x)
    same(lambda t: tuple(t.topk(2, dim=0, largest=False)), x)
    same(lambda t: tuple(torch.sort(t, stable=True)), x // 3 if not dtype.is_floating_point else x)
    same(lambda t: tuple(torch.kthvalue(t.float(), 2)), x)
    same(lambda t: tuple(t.topk(9)), x)


def test_search() -> None:
    edges, x = torch.tensor([-1.0, 0.0, 0.5, 2.0]), values(torch.float32, 3, 4)
    same(torch.searchsorted, edges, x)
    same(lambda e, t: torch.searchsorted(e, t, right=True), edges, x)
    same(lambda e, t: torch.bucketize(t, e), edges, x)


def filtered(logits: torch.Tensor, k: int, p: float) -> torch.Tensor:
    """The filters in their plainest form, for one row."""
    kept = logits.clone()
    kept[kept < kept.topk(k).values[-1]] = float("-inf")
    order = kept.argsort(descending=True)
    total = 0.0
    probabilities = kept.softmax(-1)
    for token in order.tolist():
        if total >= p:
            kept[token] = float("-inf")
        total += float(probabilities[token])
    return kept


def test_top_k_top_p() -> None:
    logits = values(torch.float32, 6, 50)
    k = torch.tensor([1, 5, 50, 10, 3, 7], dtype=torch.int32)
    p = torch.tensor([1.0, 0.5, 0.9, 0.1, 0.99, 0.7])
    got = torch_npu.npu_top_k_top_p(logits.npu(), p.npu(), k.npu()).cpu()
    want = torch.stack([filtered(*row) for row in zip(logits, k.tolist(), p.tolist(), strict=True)])
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    only_k = torch_npu.npu_top_k_top_p(logits.npu(), k=k.npu()).cpu()
    assert (only_k > float("-inf")).sum(1).tolist() == k.tolist()
    only_p = torch_npu.npu_top_k_top_p(logits.npu(), p=p.npu()).cpu()
    for row in range(6):
        torch.testing.assert_close(only_p[row], filtered(logits[row], 50, float(p[row])))


def test_top_k_top_p_wants_one_value_for_each_row() -> None:
    logits = values(torch.float32, 6, 50).npu()
    with pytest.raises(RuntimeError, match=r"aclnnApplyTopKTopP: p must have one value for each"):
        torch_npu.npu_top_k_top_p(logits, torch.ones(5).npu(), torch.ones(6).int().npu())
