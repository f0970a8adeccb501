# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparison and logic against the CPU, bit for bit, over dtypes and views."""

from __future__ import annotations

import pytest
import torch

from tests.device.ops.compare import ALL, FLOATS, INTS, VIEWS, same, values

UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "logical_not",
    "relu",
    "square",
    "nan_to_num",
]
# What is not in here, and atan2, is approximated: by vector instructions where memory is
# contiguous, else one by one. Whether the two differ in the last bits depends on the processor.
EXACT = {
    *("abs", "ceil", "floor", "frac", "neg", "reciprocal", "round", "sign", "signbit", "sqrt"),
    *("trunc", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "relu"),
    *("square", "nan_to_num"),
}
LAST_BITS = 2 * torch.finfo(torch.float32).eps
UNARY_INT = [
    "abs",
    "neg",
    "sign",
    "bitwise_not",
    "logical_not",
    "square",
    "relu",
    "sqrt",
    "sin",
    "signbit",
]
# In place where torch has that form.
UNARY_INPLACE = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "nan_to_num",
]
BOOL_BINARY = ["add", "mul", "minimum", "maximum"]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "floor_divide",
    "remainder",
    "fmod",
    "minimum",
    "maximum",
    "atan2",
    "pow",
]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
SHIFTS = ["bitwise_left_shift", "bitwise_right_shift"]


def test_a_floating_function_of_integers_fails_at_the_call() -> None:
    """torch_npu gives `exp` an integer output for int32."""
    with pytest.raises(RuntimeError, match="aclnnExp: the result is floating, but the output has"):
        torch.exp(torch.ones(3, dtype=torch.int32).npu())


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    same(getattr(torch, name), values(dtype, 5, 7))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["exp", "neg", "isfinite", "round", "sigmoid"])
def test_unary_views(name: str, view: str) -> None:
    tolerance = 0.0 if name in EXACT or view == "plain" else LAST_BITS
    function = getattr(torch, name)
    x = values(torch.float32, 6, 8)
    same(lambda x: function(VIEWS[view](x)), x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", UNARY_INT)
def test_unary_int(name: str, dtype: torch.dtype) -> None:
    same(getattr(torch, name), values(dtype, 5, 7))


@pytest.mark.parametrize("name", UNARY_INPLACE)
def test_unary_inplace(name: str) -> None:
    same(getattr(torch, name + "_"), values(torch.float32, 5, 7))
    same(lambda x: getattr(torch, name)(x, out=torch.empty_like(x)), values(torch.float32, 5, 7))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in BINARY
        for dtype in ALL
        if dtype != torch.bool or name in BOOL_BINARY
    ],
    ids=str,
)
def test_binary(name: str, dtype: torch.dtype) -> None:
    positive = dtype.is_floating_point is False or name == "pow"
    a = values(dtype, 4, 6, low=1 if positive else -5)
    b = values(dtype, 4, 6, seed=1, low=1 if positive else -5)
    if name == "pow" and dtype.is_floating_point:
        a = a.abs()
    function = getattr(torch, name)
    same(function, a, b)
    tolerance = LAST_BITS if name == "atan2" else 0.0
    same(lambda x, y: function(x, y[:1]), a, b, rtol=tolerance)
    same(lambda x, y: function(x.t(), y.t()), a, b, rtol=tolerance)
    same(lambda x, y: function(x, y[0, 0]), a, b)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow"]
)
def test_scalar_operand(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = values(dtype, 4, 6, low=1)
    x = x.abs() if name == "pow" else x
    for other in (2, 3, 2.5):
        if name == "pow" and other == 2.5 and not dtype.is_floating_point:
            continue
        same(lambda t, other=other: function(t, other), x)


@pytest.mark.parametrize(
    "name", ["add_", "sub_", "mul_", "div_", "remainder_", "fmod_", "pow_", "atan2_"]
)
def test_binary_inplace(name: str) -> None:
    a, b = values(torch.float32, 4, 6).abs(), values(torch.float32, 4, 6, seed=1)
    same(lambda x, y: getattr(x, name)(y), a, b)
    tolerance = LAST_BITS if name == "atan2_" else 0.0
    same(lambda x, y: getattr(x.t(), name)(y.t()), a, b, rtol=tolerance, atol=tolerance)
    if name != "atan2_":
        same(lambda x: getattr(x, name)(2), a)


def test_mixed_dtypes_promote_as_on_the_cpu() -> None:
    f, i, h = values(torch.float32, 3, 4), values(torch.int64, 3, 4), values(torch.float16, 3, 4)
    same(lambda x, y: x + y, f, i)
    same(lambda x, y: x * y, h, f)
    same(lambda x, y: x - y, i, h)
    same(lambda x, y: x > y, i, f)
    same(lambda x: 2.5 + x, i)
    same(lambda x: x + True, i)
    same(lambda x, y: torch.add(x, y, alpha=2), f, i)
    same(lambda x: 3 - x, f)
    same(lambda x: 1 / x, f)
    same(lambda x: 2**x, f)
    same(lambda x, y: torch.rsub(x, y, alpha=2), f, f)
    same(lambda x, y: torch.div(x, y, rounding_mode="trunc"), f, f + 3)
    same(lambda x, y: torch.div(x, y, rounding_mode="floor"), f, f + 3)
    same(lambda x: torch.div(x, 3, rounding_mode="floor"), i)
    same(lambda x: x.div_(3, rounding_mode="trunc"), f)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", COMPARE)
def test_compare(name: str, dtype: torch.dtype) -> None:
    a, b = values(dtype, 4, 6), values(dtype, 4, 6, seed=1)
    function = getattr(torch, name)
    same(function, a, b)
    same(lambda x: function(x, 1), a)
    same(lambda x, y: function(x.t(), y[0].unsqueeze(1)), a, b)


@pytest.mark.parametrize("name", COMPARE)
def test_compare_inplace(name: str) -> None:
    a, b = values(torch.float32, 4, 6), values(torch.float32, 4, 6, seed=1)
    same(lambda x, y: getattr(x, name + "_")(y), a, b)
    same(lambda x: getattr(x, name + "_")(0.5), a)


@pytest.mark.parametrize("name", LOGIC)
def test_logic(name: str) -> None:
    for dtype in (torch.bool, torch.int32, torch.float32):
        a, b = values(dtype, 4, 6), values(dtype, 4, 6, seed=1)
        same(getattr(torch, name), a, b)
    same(
        lambda x, y: getattr(x, name + "_")(y), values(torch.bool, 9), values(torch.bool, 9, seed=1)
    )


@pytest.mark.parametrize("dtype", [*INTS, torch.bool], ids=str)
@pytest.mark.parametrize("name", BITS)
def test_bits(name: str, dtype: torch.dtype) -> None:
    a, b = values(dtype, 4, 6), values(dtype, 4, 6, seed=1)
    same(getattr(torch, name), a, b)
    same(lambda x: getattr(torch, name)(x, 1 if dtype != torch.bool else True), a)
    same(lambda x, y: getattr(x, name + "_")(y), a, b)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts(name: str, dtype: torch.dtype) -> None:
    a, b = values(dtype, 4, 6, low=0, high=99), values(dtype, 4, 6, seed=1, low=0, high=4)
    same(getattr(torch, name), a, b)
    same(lambda x: getattr(torch, name)(x, 2), a)
    same(lambda x: (x << 1, x >> 1), a)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32], ids=str)
def test_clamp(dtype: torch.dtype) -> None:
    x, low = values(dtype, 4, 6), values(dtype, 4, 6, seed=1)
    same(lambda t: t.clamp(-1, 1), x)
    same(lambda t: (t.clamp(min=0), t.clamp(max=1), t.clamp_min(1), t.clamp_max(0)), x)
    same(lambda t, m: (t.clamp(min=m), t.clamp(max=m), t.clamp(m - 1, m + 1)), x, low)
    same(lambda t: t.clamp_(-1, 1), x)
    same(lambda t: t.clamp_min_(0), x)
    same(lambda t: t.clamp_max_(0), x)


def test_choosing_by_a_condition() -> None:
    a, b = values(torch.float32, 4, 6), values(torch.float32, 4, 6, seed=1)
    mask = a > 0
    same(torch.where, mask, a, b)
    same(lambda m, x: torch.where(m, x, 0.0), mask, a)
    same(lambda m, x: torch.where(m[:1], x, x[0, 0]), mask, a)
    same(lambda m, x: x.masked_fill(m, -1e9), mask, a)
    same(lambda m, x: x.masked_fill_(m, 2), mask, a)
    same(lambda m, x: x.masked_fill(m, x[0, 0]), mask, a)
    same(lambda m, x, y: x.masked_scatter(m, y), mask, a, b)
    same(lambda m: torch.where(m), mask)


def test_fused_arithmetic() -> None:
    a, b, c = (values(torch.float32, 4, 6, seed=seed) for seed in range(3))
    same(lambda x, y, z: torch.addcmul(x, y, z, value=0.5), a, b, c)
    same(lambda x, y, z: torch.addcdiv(x, y, z.abs() + 1, value=0.5), a, b, c)
    same(lambda x, y, z: x.addcmul_(y, z), a, b, c)
    same(lambda x, y: torch.lerp(x, y, 0.3), a, b)
    same(torch.lerp, a, b, c)
    same(lambda x, y: x.lerp_(y, 0.3), a, b)
    same(torch.logaddexp, a, b)
    same(lambda x, y: torch.xlogy(x, y.abs()), a, b)
    same(lambda x: torch.round(x, decimals=2), a)
    same(lambda x, y: torch.isclose(x, y), a, a + 1e-9)
    same(lambda x, y: (torch.equal(x, x), torch.equal(x, y)), a, b)
    same(torch.gcd, values(torch.int64, 9, low=1, high=99), values(torch.int64, 9, seed=1, low=1))


def test_foreach() -> None:
    lists = [
        [values(torch.float32, 3, 4, seed=seed) for seed in group] for group in ((0, 1), (2, 3))
    ]
    same(lambda x, y: torch._foreach_add(x, y), *lists)
    same(lambda x, y: torch._foreach_mul(x, y), *lists)
    same(lambda x: torch._foreach_mul(x, 2.0), lists[0])
    same(lambda x: torch._foreach_add(x, 1.0), lists[0])
    same(lambda x: torch._foreach_neg(x), lists[0])
    same(lambda x, y: torch._foreach_copy_(x, y), *lists)


def test_complex_basics() -> None:
    a, b = values(torch.float32, 4, 6), values(torch.float32, 4, 6, seed=1)
    same(torch.complex, a, b)
    same(lambda x, y: torch.complex(x, y) * torch.complex(y, x), a, b, rtol=1e-6, atol=1e-6)
    same(lambda x, y: torch.polar(x.abs(), y), a, b, rtol=1e-6, atol=1e-6)
    same(lambda x, y: torch.view_as_real(torch.complex(x, y)), a, b)
