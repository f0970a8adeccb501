# SPDX-License-Identifier: Apache-2.0
"""Layers on torch_npu's fused operators: chosen by core's dispatch, really fused, and right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def experts_layer(dtype: torch.dtype, **changes: Any) -> Any:
    """Core's method for a layer of 6 experts, 2 of them for a token, as a model makes it."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import (
        FusedMoEConfig,
        FusedMoEParallelConfig,
        RoutingMethodType,
    )
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )

    arguments = {
        "num_experts": 6,
        "experts_per_token": 2,
        "hidden_dim": 32,
        "intermediate_size": 16,
        "num_local_experts": 6,
        "num_logical_experts": 6,
        "activation": MoEActivation.SILU,
        "device": torch.device(DEVICE),
        "routing_method": RoutingMethodType.RenormalizeNaive,
        "moe_parallel_config": FusedMoEParallelConfig.make_no_parallel(),
        "in_dtype": dtype,
        **changes,
    }
    return UnquantizedFusedMoEMethod(FusedMoEConfig(**arguments))


@pytest.mark.parametrize("padded", [(), (0, 4, 8), range(9)], ids=["no-padding", "some", "all"])
@pytest.mark.parametrize("local", [None, (4, 1, 3)], ids=["all-experts", "some-experts"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(
    dtype: torch.dtype,
    local: tuple[int, ...] | None,
    padded: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Routing and experts against the formula; with a map of experts, this rank's part of it.

    Padding, where the user has it skipped, goes to no expert.
    """
    from vllm.config import VllmConfig
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk

    from vllm_ascend_mrv2.layers.fused_moe import AscendUnquantizedFusedMoE

    method = experts_layer(dtype)
    assert type(method) is AscendUnquantizedFusedMoE
    tokens, hidden, inner, count, top_k = 9, 32, 16, 6, 2
    x = values(tokens, hidden, dtype=dtype)
    w13 = values(count, 2 * inner, hidden, dtype=dtype, seed=1) / hidden**0.5
    w2 = values(count, hidden, inner, dtype=dtype, seed=2) / inner**0.5
    logits = values(tokens, count, dtype=dtype, seed=3)
    is_padding = None
    monkeypatch.setenv("VLLM_MOE_SKIP_PADDING", str(int(bool(padded))))
    if padded:
        is_padding = torch.zeros(tokens, dtype=torch.bool)
        is_padding[list(padded)] = True
    with (
        torch.inference_mode(),
        set_forward_context(
            None, VllmConfig(), is_padding=None if is_padding is None else is_padding.to(DEVICE)
        ),
    ):
        shares, ids, _ = fused_topk(x, logits, top_k, renormalize=True)
    best = logits.cpu().float().softmax(-1).sort(dim=-1, descending=True, stable=True)
    wanted_ids = best.indices[:, :top_k].int()
    wanted_ids[list(padded)] = -1
    assert torch.equal(ids.cpu(), wanted_ids)
    wanted_shares = best.values[:, :top_k]
    wanted_shares = wanted_shares / wanted_shares.sum(-1, keepdim=True)
    torch.testing.assert_close(shares.cpu(), wanted_shares, rtol=1e-6, atol=1e-6)

    mine = range(count) if local is None else local
    expert_map = None
    if local is not None:
        expert_map = torch.full((count,), -1, dtype=torch.int32)
        expert_map[list(local)] = torch.arange(len(local), dtype=torch.int32)
        expert_map = expert_map.to(DEVICE)
    nothing = torch.empty(0, device=DEVICE)
    mine13, mine2 = w13[list(mine)], w2[list(mine)]
    experts = method.experts_cls(method.moe, method.get_fused_moe_quant_config(nothing))
    output = torch.full_like(x, float("nan"))
    with torch.inference_mode(), Launches(waits=False):
        experts.apply(
            output, x, mine13, mine2, shares, ids, MoEActivation.SILU, count,
            expert_map, None, None, nothing, nothing, None, False,
        )  # fmt: skip
    wanted = torch.zeros(tokens, hidden)
    for token in range(tokens):
        for place, expert in enumerate(ids[token].tolist()):
            if expert in mine:
                row = x[token].cpu().float()
                gate, up = (w13[expert].cpu().float() @ row).chunk(2)
                act = torch.nn.functional.silu(gate) * up
                wanted[token] += shares[token, place].cpu() * (w2[expert].cpu().float() @ act)
    tolerance = TOLERANCE[dtype] * 8  # five roundings, and sums of 32
    torch.testing.assert_close(output.cpu().float(), wanted, rtol=tolerance, atol=tolerance)


def test_experts_that_are_not_computed_are_refused() -> None:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import RoutingMethodType

    for changes, named in (
        ({"activation": MoEActivation.GELU}, "GELU"),
        ({"routing_method": RoutingMethodType.DeepSeekV3}, "routing method"),
        ({"has_bias": True}, "bias"),
        ({"swiglu_limit": 7.0}, "clamp"),
    ):
        with pytest.raises(ValueError, match=named):
            experts_layer(torch.bfloat16, **changes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_the_exact_form(dtype: torch.dtype) -> None:
    """By name, as models ask for it; torch's own operator is the tanh form on this device."""
    from vllm.model_executor.layers.activation import GELU

    x = values(5, 33, dtype=dtype)
    assert_close(GELU()(x), torch.nn.functional.gelu(x.cpu()))
