# SPDX-License-Identifier: Apache-2.0
"""The part of CANN's Python module that programs ask for devices: how many, and which chip.

Ray counts a machine's NPUs by it. The results are those of the C ABI: a value and its code.
"""

from __future__ import annotations

import ctypes

_runtime = ctypes.CDLL("libascendcl.so")
_runtime.aclrtGetSocName.restype = ctypes.c_char_p


def get_soc_name() -> str:
    """The chip's name, such as Ascend910B3."""
    name: bytes = _runtime.aclrtGetSocName()
    return name.decode()


class rt:  # noqa: N801  CANN's name
    """acl.rt."""

    @staticmethod
    def get_device_count() -> tuple[int, int]:
        """Number of visible devices, and the error code of the question."""
        count = ctypes.c_uint32()
        code: int = _runtime.aclrtGetDeviceCount(ctypes.byref(count))
        return count.value, code
