# SPDX-License-Identifier: Apache-2.0
"""Kernel tests on the NPU: the cases of tests/unit/kernels, with tensors on the device."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from tests.helpers.core_oracle import CoreOracle
from tests.helpers.kernel_check import KernelCheck
from tests.helpers.kernel_fixtures import host_tables_on, oracle  # noqa: F401

hypothesis.settings.load_profile("kernels on device")


@pytest.fixture(scope="session")
def check(oracle: CoreOracle) -> KernelCheck:  # noqa: F811
    from vllm_ascend_mrv2 import kernels

    torch.npu.set_device(0)
    kernels.register()
    return KernelCheck(oracle, torch.device("npu:0"))
