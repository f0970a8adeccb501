# SPDX-License-Identifier: Apache-2.0
"""Runs one function on CPU tensors and on the same tensors on the NPU, and compares all results.

No list of operators here: each family has its test file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ALL = (*FLOATS, torch.float64, *INTS, torch.bool)

# What a tensor may look like: rank 0, empty, plain, and views that are not contiguous.
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[::2, 1::2],
    "expanded": lambda x: x[:1].expand(4, -1),
    "offset": lambda x: x[1:],
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[0, 0],
}


def values(dtype: torch.dtype, *shape: int, seed: int = 0, low: int = -5, high: int = 6) -> Any:
    """A CPU tensor of `shape` with reproducible values, in [low, high) for integers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(max(low, 0) if dtype == torch.uint8 else low, high, shape,
                         generator=generator).to(dtype)  # fmt: skip


def _move(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.npu()
    if isinstance(value, list | tuple):
        return type(value)(_move(item) for item in value)
    return value


def _flatten(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _flatten(item)]
    return [value]


def same(function: Callable[..., Any], *args: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Asserts that `function` gives on the NPU what it gives on the CPU: structure, dtype, shape
    and value; exactly, if no tolerance is given. In-place writes to `args` count as results.
    """
    moved = [_move(arg) for arg in args]
    expected = _flatten(function(*args)) + _flatten(list(args))
    actual = _flatten(function(*moved)) + _flatten(moved)
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        assert got.device.type == "npu"
        torch.testing.assert_close(
            got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
        )
