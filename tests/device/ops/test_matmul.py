# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.device.ops.compare import FLOATS, same, values


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products(dtype: torch.dtype) -> None:
    # The thread that runs the operator may split a product differently from this one.
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    )
    a, b, bias = values(dtype, 4, 6), values(dtype, 6, 5, seed=1), values(dtype, 5, seed=2)
    batch, other = values(dtype, 3, 4, 6), values(dtype, 3, 6, 5, seed=1)

    def check(function, *args) -> None:
        same(function, *args, **tolerance)

    check(torch.mm, a, b)
    check(lambda x, y: x.t() @ x, a, b)
    check(lambda x, y: x[::2] @ y[:, ::2], a, b)
    check(torch.bmm, batch, other)
    check(lambda x, y: torch.bmm(x, y.transpose(1, 2).contiguous().transpose(1, 2)), batch, other)
    check(torch.matmul, batch, b)
    check(torch.matmul, values(dtype, 2, 3, 4, 6), other)
    check(torch.matmul, a, values(dtype, 6))
    check(torch.matmul, values(dtype, 6), values(dtype, 6, seed=1))
    check(torch.mv, a, values(dtype, 6))
    check(torch.addmm, bias, a, b)
    check(lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), bias, a, b)
    check(lambda x, y: torch.zeros_like(x @ y).addmm_(x, y), a, b)
    check(torch.baddbmm, values(dtype, 3, 4, 5), batch, other)
    check(F.linear, a, b.t().contiguous(), bias)
    check(F.linear, batch, b.t().contiguous(), bias)
    check(F.linear, batch, b.t().contiguous())
    check(lambda x, y: torch.einsum("bij,bjk->bik", x, y), batch, other)
    check(lambda x, y: torch.einsum("bij,bjk->ik", x, y), batch, other)
    check(lambda x, y: torch.outer(x[0], y[0]), a, b)
    check(lambda x, y: torch.mm(x, y, out=torch.empty(4, 5, dtype=dtype, device=x.device)), a, b)


def test_large_float32_product_is_the_cpus() -> None:
    same(torch.mm, values(torch.float32, 64, 576), values(torch.float32, 576, 192, seed=1),
         rtol=1e-5, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_products_accumulate_in_float32_and_round_once(dtype: torch.dtype) -> None:
    """Also where the second factor is wider than what is widened of it at a time."""
    a, b = values(dtype, 3, 2048), values(dtype, 2048, 300, seed=1)
    bias = values(dtype, 300, seed=2)
    exact = a.double() @ b.double()
    unit = torch.finfo(dtype).eps / 2
    for ours, expected in (
        (a.npu() @ b.npu(), exact),
        (F.linear(a.npu(), b.t().contiguous().npu()), exact),
        (torch.addmm(bias.npu(), a.npu(), b.npu()), exact + bias.double()),
        (torch.addmm(bias[:1].npu(), a.npu(), b.npu()), exact + bias[:1].double()),
    ):
        torch.testing.assert_close(ours.cpu().double(), expected, rtol=unit * 1.01, atol=1e-3)


def test_empty_products() -> None:
    a, b = values(torch.float32, 4, 6), values(torch.float32, 6, 5)
    same(lambda x, y: x[:0] @ y, a, b)
    same(lambda x, y: x[:, :0] @ y[:0], a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_convolutions(dtype: torch.dtype) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    x, w, b = values(dtype, 2, 3, 8), values(dtype, 4, 3, 3, seed=1), values(dtype, 4, seed=2)
    same(F.conv1d, x, w, b, rtol=tolerance, atol=tolerance)
    same(lambda *t: F.conv1d(*t, padding=2, stride=2), x, w, b, rtol=tolerance, atol=tolerance)
    same(
        lambda t, k: F.conv1d(t, k, groups=3),
        x,
        values(dtype, 3, 1, 4),
        rtol=tolerance,
        atol=tolerance,
    )
    image, kernel = values(dtype, 2, 3, 8, 8), values(dtype, 4, 3, 3, 3, seed=1)
    same(F.conv2d, image, kernel, b, rtol=tolerance, atol=tolerance)
    same(
        lambda t, k: F.conv2d(t, k, stride=2, padding=1),
        image,
        kernel,
        rtol=tolerance,
        atol=tolerance,
    )


def test_dtypes_without_a_product_fail_at_the_call() -> None:
    a = values(torch.int32, 4, 4).npu()
    with pytest.raises(RuntimeError, match=r"aclnnMm: self has dtype Int, supported are"):
        torch.mm(a, a)
