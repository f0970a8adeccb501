# SPDX-License-Identifier: Apache-2.0
"""Core layers on torch_npu's fused operators, by core's own out-of-tree registry.

`register()` makes core construct ours where it constructs a layer of the same name. A layer reaches
its `forward_oot` where its operator is enabled (`custom_ops` "all", the default without inductor);
core's IR operators are reached from `forward_native` only and are not involved then.
"""

from __future__ import annotations

_registered = False


def register() -> None:
    """Register every layer of this package. Idempotent; to be called before a model is built."""
    global _registered
    if _registered:
        return
    from vllm_ascend_mrv2.layers import activation, fused_moe, layernorm, rotary_embedding

    layernorm.register()
    activation.register()
    rotary_embedding.register()
    fused_moe.register()
    _registered = True
