# SPDX-License-Identifier: Apache-2.0
"""Brings the weights of a LoRA adapter to the device by copies that wait.

Why: every layer of core's copies an adapter into its slot with `non_blocking=True`, from memory
that is pinned where the platform has pinned memory. Without it nothing says when the copy has read
its source, which is freed when the adapter is dropped. Here the source is on the device before core
copies it there, in the order of the stream.
Core versions: 0.30 to 0.33. Goes when core waits for copies from memory that is not pinned, or
pinned memory is proven on CANN. Undo with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_originals: dict[type, Callable[..., None]] = {}


def install() -> None:
    """Wrap `set_lora` of every layer class of core's that has its own. Idempotent.

    Imports them: only for a start with adapters.
    """
    from vllm.lora import layers
    from vllm.lora.layers.base import BaseLayerWithLoRA

    for owner in vars(layers).values():
        if isinstance(owner, type) and issubclass(owner, BaseLayerWithLoRA):
            for base in owner.__mro__:
                if base is not BaseLayerWithLoRA and "set_lora" in vars(base):
                    _wrap(base)


def uninstall() -> None:
    """Give core's layers their own again."""
    for owner, original in _originals.items():
        owner.set_lora = original  # type: ignore[attr-defined]
    _originals.clear()


def _wrap(owner: type) -> None:
    if owner in _originals:
        return
    original: Callable[..., None] = vars(owner)["set_lora"]

    @wraps(original)
    def set_lora(self: Any, index: int, lora_a: Any, lora_b: Any) -> None:
        device = self.lora_a_stacked[0].device
        original(self, index, _on(device, lora_a), _on(device, lora_b))

    _originals[owner] = original
    owner.set_lora = set_lora  # type: ignore[attr-defined]


def _on(device: torch.device, weights: Any) -> Any:
    """One tensor, or a list with None for a part that the adapter leaves alone."""
    if isinstance(weights, list):
        return [_on(device, weight) for weight in weights]
    return None if weights is None else weights.to(device)
