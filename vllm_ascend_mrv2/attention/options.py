# SPDX-License-Identifier: Apache-2.0
"""What a model may ask of attention and no backend here computes: refused when a layer is made."""

from __future__ import annotations


def refuse_options(
    alibi_slopes: list[float] | None,
    sliding_window: int | None,
    logits_soft_cap: float | None,
    kv_sharing_target_layer_name: str | None,
) -> None:
    """Raise ValueError that names each option that is asked for."""
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
