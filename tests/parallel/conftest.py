# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on several devices; they need four emulated ones (`make test-parallel`)."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conftest import (  # noqa: F401  fixtures, and tests of one server together
    pytest_collection_modifyitems,
    servers,
    tiny,
)

NEEDED_DEVICES = 4


@pytest.fixture(scope="session", autouse=True)
def enough_devices() -> None:
    count = torch.npu.device_count()
    assert count >= NEEDED_DEVICES, (
        f"{count} devices: run `make test-parallel`, or `emulator run --devices {NEEDED_DEVICES}`"
    )
