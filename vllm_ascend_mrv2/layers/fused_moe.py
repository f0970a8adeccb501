# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts on torch_npu: rows grouped by expert, two grouped products, a weighted sum.

The experts plug into core's modular kernel, whose prepare and finalize steps do what crosses ranks;
the router's softmax and top-k takes the place of an operator of core's CUDA extension. What these
do not compute is refused when the model is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch_npu
from vllm import envs
from vllm.model_executor.layers.fused_moe import modular_kernel
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as core
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP

if TYPE_CHECKING:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

# Softmax over all experts, then the best; renormalized or not.
_ROUTING = (
    RoutingMethodType.Default,
    RoutingMethodType.Renormalize,
    RoutingMethodType.RenormalizeNaive,
)
# Of npu_moe_init_routing_v2: count rows per expert; and of npu_grouped_matmul: one output, grouped
# by rows. Its group list counts rows, which for one group alone it takes only as a running sum.
_COUNT_PER_EXPERT = 1
_ONE_OUTPUT, _GROUP_ROWS = 2, 0
_RUNNING_SUMS, _COUNTS = 0, 1


class AscendExperts(modular_kernel.FusedMoEExpertsModular):
    """SwiGLU experts of one rank: [tokens, hidden] and the routing in, their weighted sum out."""

    @staticmethod
    def activation_format() -> modular_kernel.FusedMoEActivationFormat:
        return modular_kernel.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation is MoEActivation.SILU

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: FusedMoEParallelConfig) -> bool:
        return not moe_parallel_config.enable_eplb

    @staticmethod
    def _supports_routing_method(
        routing_method: RoutingMethodType, weight_key: Any, activation_key: Any
    ) -> bool:
        return routing_method in _ROUTING

    def finalize_weight_and_reduce_impl(self) -> modular_kernel.TopKWeightAndReduce:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self,
        M: int,  # noqa: N803  (core passes these by name)
        N: int,  # noqa: N803
        K: int,  # noqa: N803
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: modular_kernel.ExpertTokensMetadata | None,
        activation: MoEActivation,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (0,), (0,), (M, K)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: modular_kernel.ExpertTokensMetadata | None,
        apply_router_weight_on_input: bool,
    ) -> None:
        """Write the weighted sum over this rank's experts to `output` [tokens, hidden].

        hidden_states: [tokens, hidden]; w1: [experts, 2 * inner, hidden]; w2: [experts, hidden,
        inner]; topk_weights: [tokens, k] float32; topk_ids: [tokens, k] int32, global experts, -1
        for padding if it is skipped; expert_map: None, or [global experts] int32, the local number
        of each or -1.
        """
        num_experts = num_local = w1.shape[0]
        shares = topk_weights.to(hidden_states.dtype)
        experts, is_elsewhere = topk_ids, None
        if envs.VLLM_MOE_SKIP_PADDING:
            is_elsewhere = topk_ids < 0
        if expert_map is not None:
            known = topk_ids if is_elsewhere is None else topk_ids.clamp_min(0)
            experts = expert_map.index_select(0, known.view(-1)).view(known.shape)
            is_others = experts < 0
            is_elsewhere = is_others if is_elsewhere is None else is_others | is_elsewhere
        if is_elsewhere is not None:
            # Padding and other ranks' experts go by one number past ours, which is not active: the
            # routing takes no number below 0.
            experts = experts.masked_fill(is_elsewhere, num_local)
            shares = shares.masked_fill(is_elsewhere, 0.0)
            num_experts = num_local + 1
        rows, place_of_row, counts, _ = torch_npu.npu_moe_init_routing_v2(
            hidden_states,
            experts,
            active_num=topk_ids.numel(),
            expert_num=num_experts,
            expert_tokens_num_type=_COUNT_PER_EXPERT,
            expert_tokens_num_flag=True,
            active_expert_range=[0, num_local],
        )
        inner = torch_npu.npu_swiglu(_by_expert(rows, w1, counts))
        rows = _by_expert(inner, w2, counts)
        if is_elsewhere is not None:
            # What no expert of this rank computed is undefined, and 0 times that need not be 0.
            computed = counts.sum()
            number = torch.arange(rows.shape[0], device=rows.device)
            rows.masked_fill_((number >= computed).unsqueeze(1), 0.0)
            place_of_row = place_of_row.clamp_min(0)
        output.copy_(torch_npu.npu_moe_token_unpermute(rows, place_of_row, probs=shares))


def _by_expert(rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Rows in the order of experts, [n, k], times each expert's [m, k] transposed: [n, m]."""
    return torch_npu.npu_grouped_matmul(
        [rows],
        [weights.transpose(1, 2)],
        group_list=counts,
        split_item=_ONE_OUTPUT,
        group_type=_GROUP_ROWS,
        group_list_type=_COUNTS if counts.shape[0] > 1 else _RUNNING_SUMS,
    )[0]


class AscendUnquantizedFusedMoE(core.UnquantizedFusedMoEMethod):
    """Core's method with our experts. Raises ValueError for what they do not compute."""

    def __init__(self, moe: FusedMoEConfig) -> None:
        super().__init__(moe)
        is_supported, why_not = AscendExperts.is_supported_config(
            AscendExperts, moe, None, None, AscendExperts.activation_format()
        )
        swiglu = (moe.swiglu_limit, moe.swiglu_alpha, moe.swiglu_beta)
        if moe.has_bias or swiglu != (None, None, None):
            is_supported, why_not = False, "kernel does not support a bias or a clamp of experts"
        if not is_supported:
            raise ValueError(
                f"this model's mixture of experts does not run on this device: {why_not}. Serve a "
                "model whose experts are SwiGLU without bias, chosen by softmax, as Qwen3-MoE's."
            )
        self.experts_cls = AscendExperts

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        super().process_weights_after_loading(layer)
        if layer.apply_router_weight_on_input:
            raise ValueError(
                "router weights applied to the experts' input are not supported on this device; "
                "serve a model that applies them to the output."
            )
        if self.moe_kernel is None:
            self._init_moe_kernel(layer)


def topk_softmax(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool,
    bias: torch.Tensor | None = None,
    is_padding: torch.Tensor | None = None,
) -> None:
    """Core's operator: the k best experts of each token and their softmax weights.

    gating_output: [tokens, experts]; written: topk_weights [tokens, k] float32, topk_ids [tokens,
    k] int32. token_expert_indices is not written: no caller of core reads it. is_padding: [tokens]
    bool, given where padding is skipped (see platform.py); it goes to no expert, -1.
    Raises NotImplementedError where a bias corrects the scores.
    """
    if bias is not None:
        raise NotImplementedError("a bias of the router's scores is not supported on this device")
    weights, experts, _ = torch_npu.npu_moe_gating_top_k_softmax(
        gating_output.float(), k=topk_ids.shape[1]
    )
    if renormalize:
        torch.div(weights, weights.sum(-1, keepdim=True), out=topk_weights)
    else:
        topk_weights.copy_(weights)
    if is_padding is not None:
        experts = experts.masked_fill(is_padding.unsqueeze(1), -1)
    topk_ids.copy_(experts)


# Core's schema, of the extension that this platform does not load.
_TOPK_SOFTMAX = (
    "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, "
    "Tensor gating_output, bool renormalize, Tensor? bias, Tensor? is_padding) -> ()"
)
_library: torch.library.Library | None = None


def register() -> None:
    global _library
    core.UnquantizedFusedMoEMethod.register_oot(AscendUnquantizedFusedMoE)
    _library = torch.library.Library("_moe_C", "FRAGMENT")
    if not hasattr(torch.ops._moe_C, "topk_softmax"):
        _library.define(_TOPK_SOFTMAX)
    _library.impl("topk_softmax", topk_softmax, "PrivateUse1")
