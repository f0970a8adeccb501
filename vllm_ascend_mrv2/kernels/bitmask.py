# SPDX-License-Identifier: Apache-2.0
"""Bits packed into integers, as core packs token sets: bit i % width of word i // width."""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants


def unpack(words: torch.Tensor, num_bits: int) -> torch.Tensor:
    """[n, w] int32 -> [n, num_bits] bool, num_bits <= 32 * w."""
    bits = constants.bits(32, words.device, words.dtype)
    return words.unsqueeze(-1).bitwise_and(bits).ne(0).flatten(-2)[..., :num_bits]


def pack(flags: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[n, b] bool -> [n, ceil(b / width)] of dtype; missing bits are 0."""
    num_words = -(-flags.shape[-1] // width)
    padded = torch.nn.functional.pad(flags, (0, num_words * width - flags.shape[-1]))
    bits = constants.bits(width, flags.device)
    words = padded.view(*flags.shape[:-1], num_words, width) * bits
    # distinct bits cannot carry, so the signed sum has exactly those bits
    return words.sum(-1, dtype=torch.int32).to(dtype)
