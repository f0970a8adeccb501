# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device: which of them run later, which wait, and for what.

The rows are those of the architecture page's table and of CANN's documentation of aclrtMemcpyAsync.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import pytest
import torch

from tests.helpers.emulated import (
    D2H,
    H2D,
    Gate,
    acl,
    counters,
    handle,
    recent_error,
    reset_counters,
)


def blocks_on(call: Callable[[], object], gate: Gate) -> bool:
    """Whether `call` waits until the gate opens. Opens it."""
    device = torch.npu.current_device()
    stream = torch.npu.current_stream()

    def body() -> None:
        torch.npu.set_device(device)
        with torch.npu.stream(stream):
            call()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(0.3)
    blocked = thread.is_alive()
    gate.open()
    thread.join(30)
    assert not thread.is_alive()
    return blocked


def test_a_pinned_copy_reads_its_source_when_the_stream_gets_there() -> None:
    source = torch.full((64,), 1, dtype=torch.int32).pin_memory()
    target = torch.empty(64, dtype=torch.int32, device="npu")
    with Gate() as gate:
        gate.close()
        target.copy_(source, non_blocking=True)
        torch.npu.current_stream().query()
        time.sleep(0.05)  # the task queue's thread hands the copy to the stream
        source.fill_(2)
        gate.open()
    assert (target.cpu() == 2).all()


def test_a_pinned_result_is_stale_until_the_stream_got_there() -> None:
    source = torch.full((64,), 7, dtype=torch.int32, device="npu")
    target = torch.zeros(64, dtype=torch.int32).pin_memory()
    with Gate() as gate:
        gate.close()
        target.copy_(source, non_blocking=True)
        time.sleep(0.05)
        assert (target == 0).all()
        gate.open()
        torch.npu.current_stream().synchronize()
        assert (target == 7).all()


@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_pageable_copy_drains_its_own_stream(non_blocking: bool) -> None:
    source = torch.arange(64, dtype=torch.int32)
    target = torch.empty(64, dtype=torch.int32, device="npu")
    with Gate() as gate:
        gate.close()
        assert blocks_on(lambda: target.copy_(source, non_blocking=non_blocking), gate)
    assert torch.equal(target.cpu(), source)


def test_a_pinned_copy_does_not_wait() -> None:
    source = torch.arange(64, dtype=torch.int32).pin_memory()
    target = torch.empty(64, dtype=torch.int32, device="npu")
    with Gate() as gate:
        gate.close()
        assert not blocks_on(lambda: target.copy_(source, non_blocking=True), gate)
    assert torch.equal(target.cpu(), source)


def test_a_pageable_copy_on_an_idle_stream_does_not_wait_for_the_busy_one() -> None:
    source = torch.arange(64, dtype=torch.int32)
    target = torch.empty(64, dtype=torch.int32, device="npu")
    idle = torch.npu.Stream()
    with Gate() as gate:
        gate.close()  # the compute stream is busy

        def copy() -> None:
            with torch.npu.stream(idle):
                target.copy_(source)

        assert not blocks_on(copy, gate)
    assert torch.equal(target.cpu(), source)


def test_the_source_of_a_blocking_copy_is_free_when_it_returns() -> None:
    source = torch.full((64,), 1, dtype=torch.int32)
    target = torch.empty(64, dtype=torch.int32, device="npu")
    target.copy_(source)
    source.fill_(2)
    assert (target.cpu() == 1).all()


def test_aclrt_memcpy_waits_for_no_stream() -> None:
    target = torch.zeros(64, dtype=torch.uint8, device="npu")
    host = ctypes.create_string_buffer(b"x" * 64, 64)
    address = ctypes.c_void_p(target.data_ptr())
    with Gate() as gate:
        gate.close()
        assert acl().aclrtMemcpy(address, 64, host, 64, H2D) == 0
        back = ctypes.create_string_buffer(64)
        assert acl().aclrtMemcpy(back, 64, address, 64, D2H) == 0
        assert back.raw == b"x" * 64
        gate.open()


def test_aclrt_memcpy_async_returns_late_for_pageable_and_early_for_pinned_memory() -> None:
    target = torch.zeros(64, dtype=torch.uint8, device="npu")
    pinned = torch.ones(64, dtype=torch.uint8).pin_memory()
    address = ctypes.c_void_p(target.data_ptr())
    pageable = ctypes.create_string_buffer(64)
    stream = handle(None)

    def copy(host: object) -> None:
        assert acl().aclrtMemcpyAsync(address, 64, host, 64, H2D, stream) == 0

    reset_counters()
    with Gate() as gate:
        gate.close()
        assert blocks_on(lambda: copy(pageable), gate)
        gate.close()
        assert not blocks_on(lambda: copy(ctypes.c_void_p(pinned.data_ptr())), gate)
    total = counters()["total"]
    assert total["copies"]["h2d"]["async"]["pageable"] == {"count": 1, "bytes": 64}
    assert total["copies"]["h2d"]["async"]["pinned"] == {"count": 1, "bytes": 64}
    assert total["host_waits"]["aclrtMemcpyAsync"]["blocked"] == 1


@pytest.mark.parametrize(
    ("size", "limit", "kind", "message"),
    [
        (65, 64, H2D, "more than destMax"),
        (64, 64, D2H, "does not fit"),
        (64, 64, 99, "unknown kind"),
        (1 << 30, 1 << 30, H2D, "past the end"),
    ],
)
def test_a_wrong_copy_is_refused(size: int, limit: int, kind: int, message: str) -> None:
    target = torch.zeros(64, dtype=torch.uint8, device="npu")
    host = torch.zeros(64, dtype=torch.uint8)
    code = acl().aclrtMemcpy(
        ctypes.c_void_p(target.data_ptr()),
        ctypes.c_size_t(limit),
        ctypes.c_void_p(host.data_ptr()),
        ctypes.c_size_t(size),
        kind,
    )
    assert code == 107000
    assert message in recent_error()


def test_copies_between_devices() -> None:
    x = torch.arange(1000, device="npu:0")
    y = x.to("npu:1")
    assert y.device.index == 1
    assert torch.equal(y.cpu(), torch.arange(1000))
    assert torch.equal((y + 1).to("npu:0").cpu(), torch.arange(1, 1001))
