# SPDX-License-Identifier: Apache-2.0
"""Layers on torch_npu's fused operators: chosen by core's dispatch, really fused, and right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.helpers.launches import Launches

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# of values about 1: fused operators round once, core's torch code after every operation
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DEVICE = "npu:0"


@pytest.fixture(autouse=True)
def core_config() -> Iterator[None]:
    """A configuration as the platform makes it: custom operators on, nothing compiled."""
    from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform

    from vllm_ascend_mrv2 import layers

    assert current_platform.device_type == "npu", "the plugin is not installed here"
    torch.npu.set_device(0)
    layers.register()
    layers.register()
    compilation = CompilationConfig(mode=CompilationMode.NONE, custom_ops=["all"])
    with set_current_vllm_config(VllmConfig(compilation_config=compilation)):
        yield


def values(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def assert_close(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = TOLERANCE[wanted.dtype]
    assert mine.dtype == wanted.dtype
    torch.testing.assert_close(
        mine.cpu().float(), wanted.cpu().float(), rtol=tolerance, atol=tolerance
    )


def rms_norm(hidden_size: int, dtype: torch.dtype, **options: Any) -> torch.nn.Module:
    from vllm.model_executor.layers.layernorm import RMSNorm

    layer = RMSNorm(hidden_size, eps=1e-5, dtype=dtype, **options).to(DEVICE)
    if layer.has_weight:
        layer.weight.data.copy_(values(hidden_size, dtype=dtype, seed=9))
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (7, 576), (3, 4, 16)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    layer = rms_norm(shape[-1], dtype)
    x = values(*shape, dtype=dtype)
    with Launches() as launches:
        normed = layer(x)
    assert launches.names == ["npu_rms_norm"]
    assert_close(normed, layer.forward_native(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    layer = rms_norm(576, dtype)
    x, residual = values(5, 576, dtype=dtype), values(5, 576, dtype=dtype, seed=1)
    with Launches() as launches:
        normed, total = layer(x, residual)
    assert launches.names == ["npu_add_rms_norm"]
    wanted, wanted_total = layer.forward_native(x.clone(), residual.clone())
    assert_close(normed, wanted)
    assert_close(total, wanted_total)


@pytest.mark.parametrize(
    "options", [{"has_weight": False}, {"var_hidden_size": 32}], ids=["no weight", "partial"]
)
def test_other_norms_stay_with_core(options: dict[str, Any]) -> None:
    layer = rms_norm(64, torch.float32, **options)
    x = values(3, 64, dtype=torch.float32)
    with Launches() as launches:
        normed = layer(x)
    assert "npu_rms_norm" not in launches.names
    assert_close(normed, layer.forward_native(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (6, 384), (2, 3, 10)])
def test_silu_and_mul(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    from vllm.model_executor.layers.activation import SiluAndMul

    layer = SiluAndMul()
    x = values(*shape, dtype=dtype)
    with Launches() as launches:
        gated = layer(x)
    assert launches.names == ["npu_swiglu"]
    assert_close(gated, layer.forward_native(x))


def rotary(
    head_size: int, rotary_dim: int, dtype: torch.dtype, neox: bool, scaling: dict[str, Any] | None
) -> torch.nn.Module:
    from vllm.model_executor.layers import rotary_embedding

    rotary_embedding._ROPE_DICT.clear()
    parameters = {"rope_theta": 10000.0, "rope_type": "default", **(scaling or {})}
    parameters["partial_rotary_factor"] = rotary_dim / head_size
    layer = rotary_embedding.get_rope(
        head_size, max_position=256, is_neox_style=neox, rope_parameters=parameters, dtype=dtype
    )
    assert layer.rotary_dim == rotary_dim
    return layer.to(DEVICE)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False], ids=["neox", "gpt-j"])
@pytest.mark.parametrize(
    ("head_size", "rotary_dim", "scaling"),
    [(64, 64, None), (64, 32, None), (128, 128, LLAMA3)],
    ids=["full", "partial", "llama3"],
)
def test_rotary_embedding(
    dtype: torch.dtype, neox: bool, head_size: int, rotary_dim: int, scaling: dict[str, Any] | None
) -> None:
    layer = rotary(head_size, rotary_dim, dtype, neox, scaling)
    positions = torch.tensor([0, 1, 5, 255, 17]).to(DEVICE)
    # as the model has them: slices of one projection, not contiguous
    projected = values(5, 5 * head_size, dtype=dtype)
    query, key, _ = projected.split([3 * head_size, head_size, head_size], dim=-1)
    with Launches() as launches:
        rotated = layer(positions, query, key)
    assert launches.names == ["npu_mrope"]
    wanted = layer.forward_native(positions, query, key)
    for mine, core in zip(rotated, wanted, strict=True):
        assert_close(mine, core)


@pytest.mark.parametrize(
    ("rotary_dim", "dtype"), [(48, torch.bfloat16), (8, torch.float32)], ids=["bf16", "fp32"]
)
def test_rotary_sizes_that_the_operator_refuses(rotary_dim: int, dtype: torch.dtype) -> None:
    layer = rotary(64, rotary_dim, dtype, True, None)
    positions = torch.tensor([0, 9]).to(DEVICE)
    query, key = values(2, 128, dtype=dtype), values(2, 64, dtype=dtype, seed=1)
    with Launches() as launches:
        rotated = layer(positions, query, key)
    assert "npu_mrope" not in launches.names
    for mine, core in zip(rotated, layer.forward_native(positions, query, key), strict=True):
        assert torch.equal(mine.cpu(), core.cpu())


def test_rotary_without_a_key() -> None:
    layer = rotary(64, 64, torch.float32, True, None)
    positions, query = torch.tensor([3]).to(DEVICE), values(1, 64, dtype=torch.float32)
    rotated, key = layer(positions, query)
    assert key is None
    assert_close(rotated, layer.forward_native(positions, query)[0])


def test_rotary_decision() -> None:
    from vllm_ascend_mrv2.layers.rotary_embedding import decide

    assert decide(64, 64, torch.bfloat16).fused
    assert decide(16, 64, torch.float32).fused
    assert "multiple of 32" in decide(16, 64, torch.bfloat16).reason
    assert "float64" in decide(64, 64, torch.float64).reason
    assert "exceeds" in decide(128, 64, torch.float32).reason
