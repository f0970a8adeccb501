# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings on npu_mrope in its one-dimensional ("rope") mode.

That operator reads core's cos/sin cache by position and rotates query and key: one launch a layer,
where npu_rotary_mul needs the rows gathered first (four). It serves every class of core that
differs from RotaryEmbedding in the cache only.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from vllm.logger import init_logger

# A child of the logger that vLLM configures: others are silent below WARNING.
logger = init_logger(f"vllm.{__name__}")

# torch_npu's documentation of npu_mrope: rotary_dim is a multiple of this, by dtype.
ROTARY_DIM_MULTIPLES: dict[torch.dtype, int] = {
    torch.float32: 16,
    torch.float16: 32,
    torch.bfloat16: 32,
}

_PACKAGE = "vllm.model_executor.layers.rotary_embedding"
# Classes of core that inherit RotaryEmbedding's forward and only compute another cache.
_CLASSES: dict[str, str] = {
    "RotaryEmbedding": "base",
    "DynamicNTKAlphaRotaryEmbedding": "dynamic_ntk_alpha_rope",
    "DynamicNTKScalingRotaryEmbedding": "dynamic_ntk_scaling_rope",
    "Gemma4RotaryEmbedding": "gemma4_rope",
    "LinearScalingRotaryEmbedding": "linear_scaling_rope",
    "Llama3RotaryEmbedding": "llama3_rope",
    "NTKScalingRotaryEmbedding": "ntk_scaling_rope",
    "YaRNScalingRotaryEmbedding": "yarn_scaling_rope",
}


@dataclass(frozen=True)
class RotaryDecision:
    """Whether npu_mrope serves a layer, and why (not)."""

    fused: bool
    reason: str


def decide(rotary_dim: int, head_size: int, dtype: torch.dtype) -> RotaryDecision:
    """The decision for one layer; dtype is that of query and key."""
    multiple = ROTARY_DIM_MULTIPLES.get(dtype)
    if multiple is None:
        return RotaryDecision(False, f"npu_mrope does not take {dtype}")
    if rotary_dim % multiple:
        return RotaryDecision(
            False,
            f"npu_mrope asks for a rotary size that is a multiple of {multiple} in {dtype}, "
            f"not {rotary_dim}",
        )
    if rotary_dim > head_size:
        return RotaryDecision(False, f"rotary size {rotary_dim} exceeds head size {head_size}")
    return RotaryDecision(True, "npu_mrope, one launch for query and key")


class _FusedRotary:
    """Mixed in before a core class: its `forward_oot`."""

    is_neox_style: bool
    head_size: int
    rotary_dim: int

    def forward_oot(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate query and key, [num_tokens, num_heads * head_size]; positions: [num_tokens] int64.

        Without a key (KV shared across layers), or where `decide` says no, core's torch code runs.
        """
        decision = self._decision(query.dtype)
        if not decision.fused or key is None or query.dim() != 2 or positions.dim() != 1:
            return self.forward_native(positions, query, key)  # type: ignore[attr-defined]
        cache = self._match_cos_sin_cache_dtype(query)  # type: ignore[attr-defined]
        return torch_npu.npu_mrope(
            positions,
            query,
            key,
            cache,
            self.head_size,
            mrope_section=[0, 0, 0],
            rotary_mode="half" if self.is_neox_style else "interleave",
        )

    def _decision(self, dtype: torch.dtype) -> RotaryDecision:
        decisions: dict[torch.dtype, RotaryDecision] = self.__dict__.setdefault("_decisions", {})
        if dtype not in decisions:
            decisions[dtype] = decide(self.rotary_dim, self.head_size, dtype)
            if not decisions[dtype].fused:
                logger.info_once("Rotary embedding by torch code: %s.", decisions[dtype].reason)
        return decisions[dtype]


def register() -> None:
    for name, module in _CLASSES.items():
        core_class: Any = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
        core_class.register_oot(type(f"Ascend{name}", (_FusedRotary, core_class), {}))
