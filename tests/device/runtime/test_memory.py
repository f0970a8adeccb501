# SPDX-License-Identifier: Apache-2.0
"""Device memory: accounting, the caching allocator, running out, expandable segments, guard mode.

And page-locked host memory, whose rules are part of what the emulator must be strict about.
"""

from __future__ import annotations

import ctypes
import mmap
import signal

import pytest
import torch

from tests.helpers.emulated import BARE, acl, check, passes, recent_error, run_script

MIB = 1 << 20


def test_properties_tell_the_memory_of_the_device() -> None:
    free, total = torch.npu.mem_get_info(0)
    assert torch.npu.get_device_properties(0).total_memory == total
    assert 0 < free <= total
    assert torch.npu.device_count() == 2


def test_the_caching_allocator_reserves_and_returns() -> None:
    torch.npu.empty_cache()
    free, total = torch.npu.mem_get_info()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="npu")
    assert torch.npu.mem_get_info() == (free - 64 * MIB - 2 * MIB, total) or (
        torch.npu.mem_get_info() == (free - 64 * MIB, total)
    )  # torch_npu may pad an allocation by 32 bytes, which costs one huge page
    address = x.data_ptr()
    del x
    assert torch.npu.mem_get_info()[0] < free
    assert torch.empty(64 * MIB, dtype=torch.uint8, device="npu").data_ptr() == address
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info()[0] == free


def test_devices_have_memory_of_their_own() -> None:
    before = torch.npu.mem_get_info(0)[0]
    torch.npu.mem_get_info(1)
    x = torch.empty(32 * MIB, dtype=torch.uint8, device="npu:1")
    assert torch.npu.mem_get_info(0)[0] == before
    assert torch.npu.mem_get_info(1)[1] - torch.npu.mem_get_info(1)[0] >= 32 * MIB
    del x
    torch.npu.empty_cache()


@pytest.mark.parametrize("expandable", ["False", "True"])
def test_running_out_of_memory_is_an_error_that_one_recovers_from(expandable: str) -> None:
    passes(
        """
        import torch
        assert torch.npu.mem_get_info()[1] == 256 << 20
        kept = torch.ones(100 << 20, dtype=torch.uint8, device="npu")
        try:
            torch.empty(200 << 20, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError as error:
            text = str(error)
            assert "Tried to allocate 20" in text, text  # 200, or 202 where torch_npu pads
            assert "256.00 MiB total capacity" in text, text
        else:
            raise AssertionError("200 MiB fitted beside 100 of 256")
        torch.empty(100 << 20, dtype=torch.uint8, device="npu").fill_(1)
        assert kept.sum().item() == 100 << 20
        """,
        ASCEND_EMU_HBM_BYTES=str(256 * MIB),
        PYTORCH_NPU_ALLOC_CONF=f"expandable_segments:{expandable}",
    )


@pytest.mark.parametrize("guard", ["0", "1"])
def test_expandable_segments(guard: str) -> None:
    passes(
        """
        import torch
        free = torch.npu.mem_get_info()[0]
        xs = [torch.full((1 << 20,), float(i), device="npu") for i in range(30)]
        assert [int(x[-1].item()) for x in xs] == list(range(30))
        assert torch.npu.mem_get_info()[0] <= free - 30 * (4 << 20)
        del xs[10:20]
        torch.npu.empty_cache()
        xs += [torch.full((3 << 20,), -1.0, device="npu") for i in range(5)]
        assert all((x == -1).all().item() for x in xs[20:])
        assert int(xs[9][0].item()) == 9 and int(xs[10][0].item()) == 20
        xs.clear()
        torch.npu.empty_cache()
        assert torch.npu.memory_reserved() == 0
        assert torch.npu.mem_get_info()[0] == free, (torch.npu.mem_get_info(), free)
        """,
        PYTORCH_NPU_ALLOC_CONF="expandable_segments:True",
        ASCEND_EMU_GUARD=guard,
    )


TOUCH = """
    import ctypes, torch
    x = torch.arange(10, device="npu")
    y = (x * 2).cpu()
    assert y.tolist() == list(range(0, 20, 2))
    x[3:5] = 7
    assert x.sum().item() == 45 - 7 + 14
    print("before", flush=True)
    ctypes.c_int64.from_address(ADDRESS).value
    print("after", flush=True)
"""


def test_guard_mode_faults_on_a_host_read_of_device_memory() -> None:
    script = TOUCH.replace("ADDRESS", "x.data_ptr()")
    result = run_script(script, ASCEND_EMU_GUARD="1")
    assert result.returncode == -signal.SIGSEGV, result.stderr
    assert result.stdout == "before\n"
    assert "host code touched the device address" in result.stderr


@pytest.mark.parametrize("guard", ["0", "1"])
def test_freed_device_memory_cannot_be_read(guard: str) -> None:
    script = (
        BARE
        + """
        assert acl.aclrtSetDevice(0) == 0
        p = ctypes.c_void_p()
        assert acl.aclrtMalloc(ctypes.byref(p), ctypes.c_size_t(4096), 0) == 0
        assert acl.aclrtFree(p) == 0
        back = ctypes.create_string_buffer(8)
        assert acl.aclrtMemcpy(back, 8, p, 8, 2) == 107000
        assert b"freed?" in acl.aclGetRecentErrMsg()
        print("before", flush=True)
        ctypes.c_int64.from_address(p.value).value
        """
    )
    result = run_script(script, ASCEND_EMU_GUARD=guard)
    assert result.stdout == "before\n", result.stderr
    assert result.returncode == -signal.SIGSEGV


def test_pinned_memory_is_known_and_counted() -> None:
    torch.npu.init()
    before = acl().emu_pinned_allocations()
    pageable = torch.ones(1 << 20)
    assert not pageable.is_pinned()
    assert acl().emu_pinned_allocations() == before
    pinned = torch.ones((1 << 22) + before).pin_memory()  # a size that no cache has
    assert pinned.is_pinned()
    assert acl().emu_pinned_allocations() == before + 1


HOST, UNREGISTERED = 0, 2  # aclrtMemLocationType


def location(address: int) -> int:
    """What the runtime takes the memory at `address` for."""
    attributes = (ctypes.c_uint32 * 7)()  # aclrtPtrAttributes: location.id, location.type, ...
    check(acl().aclrtPointerGetAttributes(ctypes.c_void_p(address), attributes))
    return attributes[1]


def test_rules_of_registered_host_memory() -> None:
    torch.npu.set_device(0)
    pages = mmap.mmap(-1, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    device = ctypes.c_void_p()

    def register(offset: int, size: int) -> int:
        return acl().aclrtHostRegister(
            ctypes.c_void_p(address + offset), ctypes.c_uint64(size), 0, ctypes.byref(device)
        )

    assert register(0, 0) == 107000
    assert "size is 0" in recent_error()
    assert register(16, 64) == 107008
    check(register(0, 8192))
    assert register(4096, 4096) == 507910
    assert location(address + 8191) == HOST
    assert location(address + 8192) == UNREGISTERED
    check(acl().aclrtHostUnregister(ctypes.c_void_p(address)))
    assert location(address) == UNREGISTERED
    assert acl().aclrtHostUnregister(ctypes.c_void_p(address)) == 507911

    pinned = ctypes.c_void_p()
    check(acl().aclrtMallocHost(ctypes.byref(pinned), ctypes.c_size_t(4096)))
    check(acl().aclrtHostRegister(pinned, ctypes.c_uint64(4096), 0, ctypes.byref(device)))
    check(acl().aclrtHostUnregister(pinned))
    check(acl().aclrtFreeHost(pinned))
    assert acl().aclrtFreeHost(pinned) == 107000
