# SPDX-License-Identifier: Apache-2.0
"""Philox 4x32 with ten rounds, on tensors of any shape: the generator under core's uniform draws.

Words are int64s with uint32 values. A state is worked on in pairs, so that a round's two products
are one: both halves of a pair go through the same operators. A product of two words wraps in int64,
whose bits are what is wanted.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants

MASK = 0xFFFFFFFF
_ROUNDS = 10
_FACTORS = (0xCD9E8D57, 0xD2511F53)  # of c2 and c0
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _table(name: str, values: list[list[int]], device: torch.device) -> torch.Tensor:
    """[len(values), 2] int64, made once per device."""
    flat = torch.tensor(values, dtype=torch.int64).flatten()

    def make(_: int) -> torch.Tensor:
        return flat.to(device)

    return constants.grown(name, flat.shape[0], torch.int64, device, make).view(-1, 2)


def shifted_right(word: torch.Tensor, shift: int) -> torch.Tensor:
    """word >> shift, arithmetic. torch_npu brings a Python shift through pinned host memory."""
    amount = constants.scalar(shift, word.device, word.dtype)
    return torch.bitwise_right_shift(word, amount)


def upper(word: torch.Tensor) -> torch.Tensor:
    """Bits 32 to 63 of int64s, as uint32 values."""
    return shifted_right(word, 32).bitwise_and_(MASK)


def rounds(
    even: torch.Tensor, odd: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after ten rounds, as it was given.

    even: words (c2, c0) of the counter, odd: (c1, c3), keys: (k0, k1); each [2, ...], of shapes
    that can be broadcast to each other.
    """
    device, ones = keys.device, (1,) * (keys.dim() - 1)
    steps = [[i * step & MASK for step in _KEY_STEPS] for i in range(_ROUNDS)]
    raised = _table("philox keys", steps, device).view(_ROUNDS, 2, *ones)
    factors = _table("philox factors", [list(_FACTORS)], device).view(2, *ones)
    for key in keys.unsqueeze(0).add(raised).bitwise_and_(MASK).unbind(0):
        product = even * factors
        even = upper(product).bitwise_xor_(odd).bitwise_xor_(key).flip(0)
        odd = product.bitwise_and_(MASK)
    return even, odd
