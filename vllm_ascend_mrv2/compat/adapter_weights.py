# SPDX-License-Identifier: Apache-2.0
"""Brings the weights of a LoRA adapter to the device by copies that wait.

Why: every layer of core's copies an adapter into its slot with `non_blocking=True`, from memory
that is pinned where the platform has pinned memory. Without it nothing says when the copy has read
its source, which is freed when the adapter is dropped. Here the source is on the device before core
copies it there, in the order of the stream.

Weights of another shape than the layer's are refused: core would leave the rest of the slot empty
where they are smaller, and fail the device, and with it the engine, where they are larger.
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
        refuse_misfits(self.lora_a_stacked, self.lora_b_stacked, lora_a, lora_b)
        device = self.lora_a_stacked[0].device
        original(self, index, _on(device, lora_a), _on(device, lora_b))

    _originals[owner] = original
    owner.set_lora = set_lora  # type: ignore[attr-defined]


def refuse_misfits(room_a: Any, room_b: Any, lora_a: Any, lora_b: Any) -> None:
    """Raise ValueError where an adapter was made for a layer of another size.

    room_a, room_b: a layer's slots for A and B: tuples with [slots, 1, rank, in] and [slots, 1,
    out, rank] for each slice of a linear layer, one tensor each (an embedding's A [slots,
    vocabulary, rank]) where the vocabulary is, of which an adapter may have less.
    lora_a, lora_b: [rank, in] and [out, rank], or lists of them or None for each slice.
    """
    is_vocabulary = isinstance(room_a, torch.Tensor)
    rooms_a, rooms_b = ([room_a], [room_b]) if is_vocabulary else (room_a, room_b)
    parts_a, parts_b = (each if isinstance(each, list) else [each] for each in (lora_a, lora_b))
    if not len(parts_a) == len(parts_b) == len(rooms_b):
        return  # slices that core has yet to part or to refuse
    for slot_a, slot_b, a, b in zip(rooms_a, rooms_b, parts_a, parts_b, strict=True):
        sizes = []
        if a is not None:
            sizes.append(("in", a.shape[1], slot_a.shape[-1 if slot_a.dim() == 4 else 1]))
        if b is not None:
            sizes.append(("out", b.shape[0], slot_b.shape[-2]))
        for side, given, wanted in sizes:
            if given != wanted and not (is_vocabulary and given < wanted):
                raise ValueError(
                    f"The LoRA adapter does not fit the model: one of its layers has {given} "
                    f"features {side}, the model's has {wanted}. Load an adapter that was made "
                    "for this model."
                )


def _on(device: torch.device, weights: Any) -> Any:
    """One tensor, or a list with None for a part that the adapter leaves alone."""
    if isinstance(weights, list):
        return [_on(device, weight) for weight in weights]
    return None if weights is None else weights.to(device)
