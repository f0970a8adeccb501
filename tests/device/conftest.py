# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests that run on the emulated device in the test's own process.

A test that breaks its device on purpose runs in a process of its own
(`tests.helpers.emulated.run_script`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def device_survives() -> Iterator[None]:
    """Fail the test that broke the device, and mend it for those that follow.

    Operators run later than their call: without this, the failure would show in another test.
    """
    yield
    import torch  # not before the emulator was looked for, see tests/conftest.py

    if not torch.npu.is_initialized():
        return
    try:
        for device in range(torch.npu.device_count()):
            torch.npu.synchronize(device)
    except RuntimeError as error:
        from tests.helpers.emulated import acl

        for device in range(torch.npu.device_count()):
            acl().aclrtResetDevice(device)  # clears a device error; a poisoned device stays so
            torch.npu.set_device(device)
        torch.npu.set_device(0)
        pytest.fail(f"the device failed during this test: {error}")
