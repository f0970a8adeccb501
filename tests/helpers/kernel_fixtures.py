# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the CPU and the device kernel tests share. Import them in a conftest."""

from __future__ import annotations

import atexit
import functools
import os
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


@functools.cache
def _oracle() -> CoreOracle:
    started = CoreOracle()
    atexit.register(started.close)
    return started


@pytest.fixture(scope="session")
def oracle() -> CoreOracle:
    """Core's kernels in a process, one for all who import this fixture: it starts in 6 s of CPU."""
    return _oracle()


@pytest.fixture
def host_tables_on(check: KernelCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core's host-backed tables get their device side where `check` runs."""
    import vllm.platforms
    from vllm.v1.worker.gpu import buffer_utils

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    platform = SimpleNamespace(device_type=check.device.type)
    monkeypatch.setattr(vllm.platforms, "current_platform", platform, raising=False)
