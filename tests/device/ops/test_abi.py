# SPDX-License-Identifier: Apache-2.0
"""The handles of the C interface: what they are checked for, and who destroys them."""

from __future__ import annotations

import ctypes

import torch

from tests.device.ops.abi import Abi

INVALID = 161001
REFUSED = 161002
FRACTAL_NZ = 29


def message() -> str:
    library = ctypes.CDLL("libascendcl.so")
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    return (library.aclGetRecentErrMsg() or b"").decode()


def test_both_phases(abi: Abi) -> None:
    x, out = torch.full((2, 3), -2.0).npu(), torch.zeros(2, 3).npu()
    abi.call("aclnnAbs", x, out)
    assert out.cpu().eq(2).all()


def test_a_handle_destroyed_twice_or_of_another_type_is_refused(abi: Abi) -> None:
    x = torch.zeros(3).npu()
    array = ctypes.c_void_p(
        abi.library.aclCreateIntArray((ctypes.c_int64 * 1)(1), ctypes.c_uint64(1))
    )
    assert abi.library.aclDestroyTensor(array) == INVALID
    assert "not a live handle" in message()
    status, _ = abi.plan("aclnnAbs", array, x)
    assert status == REFUSED
    assert "aclnnAbs: argument 1 is not a live handle" in message()
    assert abi.library.aclDestroyIntArray(array) == 0


def test_a_null_argument_is_refused(abi: Abi) -> None:
    status, _ = abi.plan("aclnnAbs", torch.zeros(3).npu(), ctypes.c_void_p(None))
    assert status == REFUSED
    assert "aclnnAbs: argument 2 is null" in message()


def test_an_executor_can_be_dropped_and_an_unplanned_one_is_refused(abi: Abi) -> None:
    x = torch.zeros(3).npu()
    status, executor = abi.plan("aclnnAbs", x, x)
    assert status == 0
    assert abi.library.aclDestroyAclOpExecutor(executor) == 0
    assert abi.launch("aclnnAbs", ctypes.c_void_p(None)) == REFUSED


def test_a_wrong_output_is_refused_in_phase_1(abi: Abi) -> None:
    x = torch.zeros(2, 3).npu()
    assert abi.plan("aclnnAbs", x, torch.zeros(3, 2).npu())[0] == REFUSED
    assert "the input has shape" in message()
    assert abi.plan("aclnnMul", x, torch.zeros(3).npu(), torch.zeros(2, 2).npu())[0] == REFUSED
    assert "the operands broadcast to" in message()


def test_a_private_format_is_refused(abi: Abi) -> None:
    x = torch.zeros(16, 16).npu()
    private = abi.tensor(x, FRACTAL_NZ)
    assert abi.plan("aclnnAbs", private, x)[0] == REFUSED
    assert "private format 29" in message()
    assert abi.library.aclDestroyTensor(private) == 0
