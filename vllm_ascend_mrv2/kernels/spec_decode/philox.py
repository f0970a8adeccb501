# SPDX-License-Identifier: Apache-2.0
"""Triton's `tl.rand` (Philox 4x32, ten rounds): the uniform draws of core's rejection sampling.

One draw per seed and position, bit for bit core's.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_SCALE = 4.6566127342e-10  # Triton's, from 31 bits to [0, 1)
_SMALLEST = 4.6566127342e-10  # core's, where a draw may not be 0


def _table(name: str, values: list[list[int]], device: torch.device) -> torch.Tensor:
    """[len(values), 2, 1] int64, made once per device."""
    flat = torch.tensor(values, dtype=torch.int64).flatten()

    def make(_: int) -> torch.Tensor:
        return flat.to(device)

    return constants.grown(name, flat.shape[0], torch.int64, device, make).view(-1, 2, 1)


def _upper(word: torch.Tensor) -> torch.Tensor:
    """Bits 32 to 63 of int64s, as uint32 values."""
    shift = constants.scalar(32, word.device, word.dtype)
    return torch.bitwise_right_shift(word, shift).bitwise_and_(_MASK)


def uniform(seeds: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """Uniform draws in (0, 1), [...] float32: core's `tl_rand32` without zero.

    seeds and pos: int64 of the same shape. The state is worked on in pairs, so that a round's two
    products are one: both halves of a pair go through the same operators. A product of two 32-bit
    words wraps in int64, whose bits are what is wanted.
    """
    shape, device = pos.shape, pos.device
    seeds, pos = seeds.reshape(-1), pos.reshape(-1)
    keys = torch.stack((seeds & _MASK, _upper(seeds)))
    raised = _table(
        "philox keys", [[i * _KEY_A & _MASK, i * _KEY_B & _MASK] for i in range(_ROUNDS)], device
    )
    keys = keys.unsqueeze(0).add(raised).bitwise_and_(_MASK)
    factors = _table("philox factors", [[_ROUND_B, _ROUND_A]], device)[0]
    # multiplied: (c2, c0), which start as (0, the position's lower word); others: (c1, c3)
    zero = constants.zeros(pos.shape[0], device)
    multiplied = torch.stack((zero, pos & _MASK))
    others = torch.stack((_upper(pos), zero))
    for key in keys.unbind(0):
        product = multiplied * factors
        mixed = _upper(product).bitwise_xor_(others).bitwise_xor_(key)
        others = product.bitwise_and_(_MASK)
        multiplied = mixed.flip(0)
    bits = multiplied[1]
    # as Triton: the 32 bits as a signed number, negative ones complemented
    folded = torch.where(bits > _MASK >> 1, _MASK - bits, bits)
    return folded.to(torch.float32).mul_(_SCALE).clamp_min_(_SMALLEST).view(shape)
