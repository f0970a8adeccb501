# SPDX-License-Identifier: Apache-2.0
"""Private formats: conversion works both ways, computing on them is refused at the call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch_npu

from tests.device.ops.compare import values

FRACTAL_NZ, ND = 29, 2


@pytest.fixture(autouse=True)
def internal_formats() -> Iterator[None]:
    """Allowed here only: with them torch_npu sends convolutions to the legacy path."""
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("shape", [(16, 16), (40, 70), (3, 20, 33)], ids=str)
def test_there_and_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = values(dtype, *shape)
    nz = torch_npu.npu_format_cast(x.npu(), FRACTAL_NZ)
    assert torch_npu.get_npu_format(nz) == FRACTAL_NZ
    assert torch.equal(torch_npu.npu_format_cast(nz, ND).cpu(), x)
    assert torch.equal(nz.cpu(), x)


def test_computing_on_nz_is_refused_at_the_call() -> None:
    x = values(torch.float16, 32, 32).npu()
    nz = torch_npu.npu_format_cast(x, FRACTAL_NZ)
    with pytest.raises(RuntimeError, match="aclnnMatmulWeightNz is not implemented"):
        torch.mm(x, nz)
