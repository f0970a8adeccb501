# SPDX-License-Identifier: Apache-2.0
"""Calls aclnn operators through their C interface, for what torch_npu does not call by itself."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

# aclDataType numbers (acl_base.h).
ACL_TYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.int8: 2,
    torch.int32: 3,
    torch.uint8: 4,
    torch.int64: 9,
    torch.bool: 12,
    torch.bfloat16: 27,
}
ACL_FORMAT_ND = 2


class Abi:
    """libopapi, with handles made and destroyed around each call."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libopapi.so")
        self.library.aclCreateTensor.restype = ctypes.c_void_p
        self.library.aclCreateIntArray.restype = ctypes.c_void_p

    def tensor(self, x: torch.Tensor, acl_format: int = ACL_FORMAT_ND) -> ctypes.c_void_p:
        """A handle of `x`. The caller destroys it."""
        dims = (ctypes.c_int64 * max(x.dim(), 1))(*x.shape)
        strides = (ctypes.c_int64 * max(x.dim(), 1))(*x.stride())
        return ctypes.c_void_p(
            self.library.aclCreateTensor(
                dims,
                ctypes.c_uint64(x.dim()),
                ACL_TYPES[x.dtype],
                strides,
                ctypes.c_int64(0),
                acl_format,
                dims,
                ctypes.c_uint64(x.dim()),
                ctypes.c_void_p(x.data_ptr()),
            )
        )

    def plan(self, name: str, *args: Any) -> tuple[int, ctypes.c_void_p]:
        """Phase 1: its status and the executor. Tensors become handles, floats doubles."""
        handles = [self.tensor(arg) if isinstance(arg, torch.Tensor) else None for arg in args]
        converted = [
            handle
            if handle is not None
            else ctypes.c_double(arg)
            if isinstance(arg, float)
            else arg
            for handle, arg in zip(handles, args, strict=True)
        ]
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        status = getattr(self.library, name + "GetWorkspaceSize")(
            *converted, ctypes.byref(size), ctypes.byref(executor)
        )
        for handle in handles:
            if handle is not None:
                assert self.library.aclDestroyTensor(handle) == 0
        return status, executor

    def launch(self, name: str, executor: ctypes.c_void_p) -> int:
        """Phase 2 on the current stream."""
        stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
        return int(getattr(self.library, name)(None, ctypes.c_uint64(0), executor, stream))

    def call(self, name: str, *args: Any) -> None:
        """Both phases."""
        torch.npu.synchronize()  # torch_npu's own queue comes first
        status, executor = self.plan(name, *args)
        assert status == 0, status
        assert self.launch(name, executor) == 0
