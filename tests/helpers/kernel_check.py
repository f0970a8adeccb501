# SPDX-License-Identifier: Apache-2.0
"""Compares a function of core with our kernels on a device against the same with core's kernels.

Integers must be equal bit for bit; floating point within the given tolerance, infinities in place.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.helpers.core_oracle import CoreOracle, resolve
from tests.helpers.launches import Launches


@dataclass(frozen=True)
class KernelCheck:
    """oracle: core's kernels; device: where ours run."""

    oracle: CoreOracle
    device: torch.device

    def same(self, function: str, *args: Any, rtol: float = 0.0, atol: float = 0.0) -> Any:
        """Call `function` on both sides; result and mutated arguments must agree. Ours is returned.

        Ours may not wait for the device.
        """
        ours_args = self.place(copy.deepcopy(args))
        with Launches(waits=False):
            ours = resolve(function)(*ours_args)
        theirs, theirs_args = self.oracle.call(function, *args)
        assert_same(ours, theirs, f"{function} result", rtol, atol)
        for i, (mine, wanted) in enumerate(zip(ours_args, theirs_args, strict=True)):
            assert_same(mine, wanted, f"{function} argument {i}", rtol, atol)
        return ours

    def place(self, value: Any) -> Any:
        """The same value with every tensor on the device; strides kept."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        if isinstance(value, (list, tuple)):
            return type(value)(self.place(item) for item in value)
        if isinstance(value, dict):
            return {name: self.place(item) for name, item in value.items()}
        return value


def assert_same(mine: Any, wanted: Any, what: str, rtol: float, atol: float) -> None:
    if isinstance(wanted, torch.Tensor):
        mine = mine.cpu()
        assert mine.shape == wanted.shape, f"{what}: {mine.shape} != {wanted.shape}"
        assert mine.dtype == wanted.dtype, f"{what}: {mine.dtype} != {wanted.dtype}"
        if wanted.dtype.is_floating_point:
            torch.testing.assert_close(
                mine, wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
            )
        else:
            assert torch.equal(mine, wanted), f"{what}:\n{mine}\n!=\n{wanted}"
    elif isinstance(wanted, (list, tuple)):
        assert len(mine) == len(wanted), what
        for i, (a, b) in enumerate(zip(mine, wanted, strict=True)):
            assert_same(a, b, f"{what}[{i}]", rtol, atol)
    elif isinstance(wanted, dict):
        assert mine.keys() == wanted.keys(), what
        for name, value in wanted.items():
            assert_same(mine[name], value, f"{what}[{name}]", rtol, atol)
    elif isinstance(wanted, np.ndarray):
        np.testing.assert_array_equal(mine, wanted, err_msg=what)
    else:
        assert mine == wanted, f"{what}: {mine} != {wanted}"
