# SPDX-License-Identifier: Apache-2.0
"""vLLM attention backend on npu_fused_infer_attention_score (FIA) with a paged KV cache.

K and V are two contiguous caches [num_blocks, block_size, num_kv_heads * head_size]: core is asked
for two "head slots" per page whose content is a token's whole K (or V) row, and for the layout
that puts the slot before the block (LHBNC), so core's own allocator yields them without a copy.
Host lengths come from the sequence-length authority only; no length is read from the device here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
import torch_npu
from vllm.config import VllmConfig
from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from vllm_ascend_mrv2.attention.fia import FiaCall, attend
from vllm_ascend_mrv2.attention.key_mask import KeyMask
from vllm_ascend_mrv2.attention.layer import FiaLayer
from vllm_ascend_mrv2.attention.plan import FiaPlan, HostSeqLens, make_captured_plan, make_fia_plan

# FIA: the block size of a paged KV cache is a multiple of 16 (CANN operator documentation).
FIA_BLOCK_SIZE_MULTIPLE = 16
# Used where the user names none: the block size that CANN's paged-attention examples use.
PREFERRED_BLOCK_SIZE = 128


class AscendAttentionBackend(AttentionBackend):
    """FIA over contiguous paged K and V caches."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AscendAttentionImpl]:
        return AscendAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[AscendAttentionMetadataBuilder]:
        return AscendAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(
        kv_cache_spec: KVCacheSpec | None = None,
    ) -> list[int | MultipleOf]:
        return [MultipleOf(FIA_BLOCK_SIZE_MULTIPLE)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return PREFERRED_BLOCK_SIZE

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LHBNC,)

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        if spec.state_content_bytes is not None:
            return spec
        if spec.head_size_v != spec.head_size:
            raise ValueError(
                f"K heads of {spec.head_size} and V heads of {spec.head_size_v} elements: this "
                "backend needs equal sizes. Use a model with equal K and V head sizes."
            )
        return replace(
            spec,
            num_head_slots=2,
            state_content_bytes=spec.num_kv_heads * spec.head_size * get_dtype_size(spec.dtype),
        )


class AscendAttentionMetadataBuilder(AttentionMetadataBuilder[FiaPlan]):
    """Builds the checked FIA plan of a step for one KV cache group."""

    # Of several tokens for each request, where drafts are verified.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Both given by the runner after the KV cache was set up. masked_query_len: batches of so
        # many tokens for each request are attended by a mask, their lengths being upper bounds.
        self.host_seq_lens = HostSeqLens()
        self.masked_query_len: int | None = None
        self._key_mask: KeyMask | None = None

    def _mask_of(self, batch: CommonAttentionMetadata) -> KeyMask | None:
        """The mask that a batch of this shape is attended by, if any."""
        query_len = self.masked_query_len
        starts = batch.query_start_loc_cpu[: batch.num_reqs + 1].numpy()
        if query_len is None or batch.num_actual_tokens != query_len * batch.num_reqs:
            return None
        # Rows that pad a batch for a graph are behind its last token there.
        if not np.isin(np.diff(starts), (query_len, 0)).all():
            return None
        if self._key_mask is None:
            block_size = self.kv_cache_spec.block_size
            self._key_mask = KeyMask(
                self.vllm_config.scheduler_config.max_num_seqs,
                query_len,
                batch.block_table_tensor.shape[1] * block_size,
                self.device,
            )
        return self._key_mask

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> FiaPlan:
        batch = common_attn_metadata
        kv_lens = self.host_seq_lens.require(batch.num_reqs)
        mask = None
        if (key_mask := self._mask_of(batch)) is not None:
            mask = key_mask.fill(batch.positions[: batch.num_actual_tokens])
        if kv_lens[-1] == 0:  # rows without a request: a decode batch padded for a graph
            return make_captured_plan(
                kv_lens.tolist(),
                batch.block_table_tensor[: batch.num_reqs],
                batch.slot_mapping,
                self.kv_cache_spec.block_size,
                batch.num_actual_tokens // batch.num_reqs,
                mask,
            )
        return make_fia_plan(
            query_start_loc=batch.query_start_loc_cpu[: batch.num_reqs + 1].numpy(),
            kv_lens=kv_lens,
            num_tokens=batch.num_actual_tokens,
            block_table=batch.block_table_tensor,
            slot_mapping=batch.slot_mapping,
            block_size=self.kv_cache_spec.block_size,
            max_model_len=self.vllm_config.model_config.max_model_len,
            mask=mask,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> FiaPlan:
        batch = common_attn_metadata
        key_mask = self._mask_of(batch)
        return make_captured_plan(
            [],
            batch.block_table_tensor[: batch.num_reqs],
            batch.slot_mapping,
            self.kv_cache_spec.block_size,
            batch.num_actual_tokens // batch.num_reqs,
            None if key_mask is None else key_mask.of_rows(batch.num_reqs),
        )


class AscendAttentionImpl(FiaLayer[FiaPlan]):
    """One attention layer: writes its K and V to the cache, then runs FIA over it."""

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FiaPlan | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend and return `output`.

        query [T', num_heads, head_size], key and value [T', num_kv_heads, head_size] with
        T' >= plan.num_tokens (padding is not read); kv_cache [num_blocks, 2, block_size,
        num_kv_heads * head_size]; output [T', num_heads, head_size], written up to T.
        """
        plan = attn_metadata
        if plan is None:  # memory profiling: there is no KV cache yet
            return output.fill_(0)
        key_cache, value_cache = kv_cache.unbind(1)
        tokens = plan.num_tokens
        heads = (*key_cache.shape[:2], self.num_kv_heads, self.head_size)
        # Both operators take contiguous tensors only; value is a view of the fused projection.
        torch_npu.npu_scatter_pa_kv_cache(
            key[:tokens].contiguous(),
            value[:tokens].contiguous(),
            key_cache.view(heads),
            value_cache.view(heads),
            plan.slot_mapping[:tokens],
            cache_mode="Norm",
        )
        queries = query[:tokens].contiguous()
        if plan.mask is not None:
            queries = queries.unflatten(0, (plan.mask.shape[0], -1))
        call = FiaCall(
            query=queries,
            key_cache=key_cache,
            value_cache=value_cache,
            block_table=plan.block_table,
            block_size=plan.block_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            scale=self.scale,
            mask=plan.mask,
        )
        attended = attend(call, plan.query_ends, plan.kv_lens)
        output[:tokens].copy_(attended.view_as(output[:tokens]))
        return output
