# SPDX-License-Identifier: Apache-2.0
"""What an attention layer is made with, of both backends: heads by default, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_ascend_mrv2.attention.backend import AscendAttentionImpl
from vllm_ascend_mrv2.attention.encoder import AscendEncoderImpl

LAYERS = [AscendAttentionImpl, AscendEncoderImpl]


@pytest.mark.parametrize("layer", LAYERS)
def test_heads_of_keys_are_those_of_queries_unless_given(layer: type[Any]) -> None:
    assert layer(8, 64, 0.125).num_kv_heads == 8
    made = layer(8, 64, 0.125, num_kv_heads=2)
    assert (made.num_heads, made.head_size, made.scale, made.num_kv_heads) == (8, 64, 0.125, 2)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"alibi_slopes": [0.5]}, "ALiBi slopes"),
        ({"sliding_window": 4096}, "a sliding window of 4096"),
        ({"logits_soft_cap": 50.0}, "a logits soft cap of 50.0"),
        ({"kv_sharing_target_layer_name": "layers.0"}, "KV sharing between layers"),
        (
            {"sliding_window": 8, "logits_soft_cap": 1.0},
            "a sliding window of 8 and a logits soft cap of 1.0",
        ),
    ],
)
def test_what_no_backend_computes_is_named(
    layer: type[Any], option: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"do not support {named}, which this model asks for"):
        layer(8, 64, 0.125, **option)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_soft_cap_of_zero_is_none(layer: type[Any]) -> None:
    layer(8, 64, 0.125, logits_soft_cap=0.0)
