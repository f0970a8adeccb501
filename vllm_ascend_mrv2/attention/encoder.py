# SPDX-License-Identifier: Apache-2.0
"""Attention of encoder-only models on FIA: every token of a request sees every other, no KV cache.

Such a model has each request's tokens in one step, so keys and values are this step's own, and the
only lengths are the step's query lengths, which the host knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch_npu
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionLayer,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from vllm_ascend_mrv2.attention.layer import FiaLayer
from vllm_ascend_mrv2.attention.plan import PlanError

SPARSE_NONE = 0  # FIA sparse_mode without a mask: full attention


@dataclass(frozen=True)
class EncoderPlan:
    """A step's requests: query_ends is cumulative, [num_reqs] host integers; the last is T."""

    query_ends: list[int]


class AscendEncoderBackend(AttentionBackend):
    """FIA over packed sequences, without a mask."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AscendEncoderImpl]:
        return AscendEncoderImpl

    @staticmethod
    def get_builder_cls() -> type[AscendEncoderMetadataBuilder]:
        return AscendEncoderMetadataBuilder

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.ENCODER_ONLY

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


class AscendEncoderMetadataBuilder(AttentionMetadataBuilder[EncoderPlan]):
    """Takes a step's query lengths from the host."""

    _cudagraph_support = AttentionCGSupport.NEVER

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> EncoderPlan:
        batch = common_attn_metadata
        starts = batch.query_start_loc_cpu[: batch.num_reqs + 1].numpy()
        if (
            starts[0] != 0
            or starts[-1] != batch.num_actual_tokens
            or (starts[1:] < starts[:-1]).any()
        ):
            raise PlanError(
                f"query_start_loc {starts.tolist()} does not cut {batch.num_actual_tokens} tokens "
                f"into {batch.num_reqs} requests"
            )
        return EncoderPlan(starts[1:].tolist())


class AscendEncoderImpl(FiaLayer[EncoderPlan]):
    """One attention layer of an encoder."""

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: EncoderPlan | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend and return `output`.

        query [T', num_heads, head_size], key and value [T', num_kv_heads, head_size] with T' >= the
        plan's T (padding is not read); output like query, written up to T.
        """
        if attn_metadata is None:  # memory profiling
            return output.fill_(0)
        ends = attn_metadata.query_ends
        tokens = ends[-1]
        attended, _ = torch_npu.npu_fused_infer_attention_score(
            query[:tokens].contiguous(),
            key[:tokens].contiguous(),
            value[:tokens].contiguous(),
            actual_seq_lengths=ends,
            actual_seq_lengths_kv=ends,
            input_layout="TND",
            num_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            scale=self.scale,
            sparse_mode=SPARSE_NONE,
        )
        output[:tokens].copy_(attended)
        return output
