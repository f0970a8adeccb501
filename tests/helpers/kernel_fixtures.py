# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the CPU and the device kernel tests share. Import them in a conftest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.helpers.core_oracle import CoreOracle
from tests.helpers.kernel_check import KernelCheck

# a call of the oracle takes milliseconds; a failing example reproduces (derandomized)
for name, max_examples in (("kernels", 20), ("kernels on device", 8)):
    hypothesis.settings.register_profile(
        name, max_examples=max_examples, deadline=None, derandomize=True
    )


@pytest.fixture(scope="session")
def oracle() -> Iterator[CoreOracle]:
    """Core's kernels, in one process for the session."""
    oracle = CoreOracle()
    yield oracle
    oracle.close()


@pytest.fixture
def host_tables_on(check: KernelCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core's host-backed tables get their device side where `check` runs."""
    import vllm.platforms
    from vllm.v1.worker.gpu import buffer_utils

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    platform = SimpleNamespace(device_type=check.device.type)
    monkeypatch.setattr(vllm.platforms, "current_platform", platform, raising=False)
