# SPDX-License-Identifier: Apache-2.0
"""Triton's `tl.rand` (Philox 4x32, ten rounds): the uniform draws of core's rejection sampling.

One draw per seed and position, bit for bit core's.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants, philox

_SCALE = 4.6566127342e-10  # Triton's, from 31 bits to [0, 1)
_SMALLEST = 4.6566127342e-10  # core's, where a draw may not be 0


def uniform(seeds: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    """Uniform draws in (0, 1), [...] float32: core's `tl_rand32` without zero.

    seeds and pos: int64 of the same shape. The position is the counter, the seed the key.
    """
    shape, mask = pos.shape, philox.MASK
    seeds, pos = seeds.reshape(-1), pos.reshape(-1)
    keys = torch.stack((seeds & mask, philox.upper(seeds)))
    zero = constants.zeros(pos.shape[0], pos.device)
    even, odd = torch.stack((zero, pos & mask)), torch.stack((philox.upper(pos), zero))
    bits = philox.rounds(even, odd, keys)[0][1]
    # as Triton: the 32 bits as a signed number, negative ones complemented
    folded = torch.where(bits > mask >> 1, mask - bits, bits)
    return folded.to(torch.float32).mul_(_SCALE).clamp_min_(_SMALLEST).view(shape)
