# SPDX-License-Identifier: Apache-2.0
"""What an attention layer is made with, in each backend; what none computes is refused here.

How a layer attends is the backend's own.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from vllm.v1.attention.backend import AttentionImpl, AttentionType

PlanT = TypeVar("PlanT")  # what a step is planned as


class FiaLayer(AttentionImpl[PlanT], Generic[PlanT]):
    """The heads of one layer: num_heads of queries, num_kv_heads of keys and values."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        """Raises ValueError that names each option that is asked for and not computed."""
        unsupported = {
            "ALiBi slopes": alibi_slopes is not None,
            f"a sliding window of {sliding_window}": sliding_window is not None,
            f"a logits soft cap of {logits_soft_cap}": bool(logits_soft_cap),
            "KV sharing between layers": kv_sharing_target_layer_name is not None,
        }
        if asked := [what for what, is_asked in unsupported.items() if is_asked]:
            raise ValueError(
                f"the Ascend attention backends do not support {' and '.join(asked)}, which this "
                "model asks for. Serve another model, or follow the roadmap."
            )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
