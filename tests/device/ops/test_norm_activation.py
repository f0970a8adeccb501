# SPDX-License-Identifier: Apache-2.0
"""Activations, softmax and normalisations: torch's against the CPU, fused ones against formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_npu

from tests.device.ops.compare import FLOATS, same, values

# One rounding of the result.
ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
    "celu": F.celu,
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
    "threshold": lambda x: F.threshold(x, 0.1, 20),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "logsigmoid": F.logsigmoid,
    "glu": F.glu,
    "relu6": F.relu6,
    "logit": lambda x: torch.logit(x.sigmoid(), 1e-4),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str, dtype: torch.dtype) -> None:
    tolerance = ROUNDING[dtype]
    same(ACTIVATIONS[name], values(dtype, 5, 8), rtol=tolerance, atol=tolerance)
    same(lambda x: ACTIVATIONS[name](x.t()), values(dtype, 6, 8), rtol=tolerance, atol=tolerance)


def test_gelu_is_the_tanh_form_as_on_an_a2() -> None:
    """torch_npu calls aclnnGelu for both forms, and that operator computes the tanh form."""
    x = values(torch.float32, 5, 8)
    want = F.gelu(x, approximate="tanh")
    torch.testing.assert_close(F.gelu(x.npu()).cpu(), want, rtol=1e-6, atol=1e-6)
    exact = torch_npu.npu_gelu(x.npu(), approximate="none").cpu()
    torch.testing.assert_close(exact, F.gelu(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(dtype: torch.dtype) -> None:
    tolerance = ROUNDING[dtype]
    x = values(dtype, 5, 8)
    for dim in (0, 1, -1):
        same(lambda t, d=dim: (t.softmax(d), t.log_softmax(d)), x, rtol=tolerance, atol=tolerance)
    same(lambda t: t.softmax(-1, dtype=torch.float32), x, rtol=1e-6, atol=1e-6)
    same(lambda t: t.log_softmax(-1, dtype=torch.float32), x, rtol=1e-6, atol=1e-6)
    same(
        lambda t: t.masked_fill(t < 0, float("-inf")).softmax(-1), x, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_torch(dtype: torch.dtype) -> None:
    tolerance = max(ROUNDING[dtype], 1e-5)
    x, w, b = values(dtype, 2, 6, 8), values(dtype, 8, seed=1), values(dtype, 8, seed=2)
    same(lambda t, u, v: F.layer_norm(t, (8,), u, v), x, w, b, rtol=tolerance, atol=tolerance)
    same(lambda t: F.layer_norm(t, (6, 8)), x, rtol=tolerance, atol=tolerance)
    same(lambda t, u: F.rms_norm(t, (8,), u, 1e-6), x, w, rtol=tolerance, atol=tolerance)
    same(lambda t: F.group_norm(t, 3), x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fused_rms_norms(dtype: torch.dtype) -> None:
    tolerance = ROUNDING[dtype]
    x, y = values(dtype, 5, 64), values(dtype, 5, 64, seed=1)
    weight = values(dtype, 64, seed=2)

    def normalised(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = t.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * w.float()).to(
            dtype
        )

    def close(got: torch.Tensor, want: torch.Tensor) -> None:
        torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance)

    out, rstd = torch_npu.npu_rms_norm(x.npu(), weight.npu(), 1e-6)
    close(out, normalised(x, weight))
    assert rstd.shape == (5, 1)
    assert rstd.dtype == torch.float32
    out, _, added = torch_npu.npu_add_rms_norm(x.npu(), y.npu(), weight.npu(), 1e-6)
    close(added, x + y)
    close(out, normalised(x + y, weight))
    out, _ = torch_npu.npu_gemma_rms_norm(x.npu(), weight.npu(), 1e-6)
    close(out, normalised(x, weight.float() + 1))
    first, second = x.npu(), y.npu()
    torch_npu.npu_add_rms_norm_v2(first, second, weight.npu(), 1e-6)
    close(first, normalised(x + y, weight))
    close(second, x + y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_swiglu(dtype: torch.dtype) -> None:
    x = values(dtype, 5, 64)
    left, right = x.float().chunk(2, -1)
    torch.testing.assert_close(
        torch_npu.npu_swiglu(x.npu()).cpu(),
        (F.silu(left) * right).to(dtype),
        rtol=ROUNDING[dtype],
        atol=ROUNDING[dtype],
    )
    assert torch_npu.npu_swiglu(x[:0].npu()).shape == (0, 32)


def test_wrong_calls_fail_where_they_are_made() -> None:
    x = values(torch.float32, 5, 64).npu()
    with pytest.raises(RuntimeError, match="aclnnRmsNorm: gamma of shape"):
        torch_npu.npu_rms_norm(x, torch.ones(32).npu(), 1e-6)
    with pytest.raises(RuntimeError, match="aclnnAddRmsNorm: x1 has dtype Float and x2 has"):
        torch_npu.npu_add_rms_norm(x, x.half(), torch.ones(64).npu(), 1e-6)
