# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the operator tests."""

from __future__ import annotations

import pytest
import torch

from tests.device.ops.abi import Abi


@pytest.fixture(scope="session")
def abi() -> Abi:
    torch.npu.set_device(0)
    return Abi()
