# SPDX-License-Identifier: Apache-2.0
"""Device constants that replacements share: index ramps and tables, made once per device.

Only values that never change. A constant is never freed nor moved, since a captured graph may hold
its address.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_MIN_LENGTH = 1024  # elements; short ramps share one tensor
_cache: dict[tuple[str, torch.device, torch.dtype], list[torch.Tensor]] = {}


def grown(
    name: str,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    make: Callable[[int], torch.Tensor],
) -> torch.Tensor:
    """The first `length` elements of the constant `name`, a [>= length] tensor on `device`.

    `make(n)` builds n elements, in which every element may depend on its index only. Longer
    generations are made as they are asked for; earlier ones stay alive.
    """
    generations = _cache.setdefault((name, device, dtype), [])
    for tensor in generations:
        if tensor.shape[0] >= length:
            return tensor[:length]
    capacity = max(_MIN_LENGTH, 1 << (length - 1).bit_length()) if length else _MIN_LENGTH
    generations.append(make(capacity))
    return generations[-1][:length]


def arange(length: int, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """[length]: 0, 1, 2, ... on `device`."""
    return grown(
        "arange", length, dtype, device, lambda n: torch.arange(n, dtype=dtype, device=device)
    )


def zeros(length: int, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """[length] zeros on `device`. Read only."""
    return grown(
        "zeros", length, dtype, device, lambda n: torch.zeros(n, dtype=dtype, device=device)
    )


def bits(width: int, device: torch.device, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """[width]: 1 << i as `dtype`; the top bit of a signed type is its minimum."""

    def make(_: int) -> torch.Tensor:
        powers = torch.tensor([1 << i for i in range(width)], dtype=torch.int64)
        return powers.to(dtype).to(device)

    return grown(f"bits{width}", width, dtype, device, make)


def scalar(value: float, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[1] tensor holding `value`, for operators that take no Python scalar in that place."""
    return grown(
        f"scalar{value!r}",
        1,
        dtype,
        device,
        lambda n: torch.full((n,), value, dtype=dtype, device=device),
    )
