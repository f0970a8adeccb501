# SPDX-License-Identifier: Apache-2.0
"""Runs hazards under many seeds in a process whose order checker reports.

`python -m tests.device.hazards.harness red|green SEEDS NAME...` prints a JSON object for each run:
what was found. The device is mended after each run that broke it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch

from tests.device.hazards.programs import HAZARDS
from tests.helpers.emulated import acl


def findings() -> list[dict[str, Any]]:
    """What the order checker of this process has found since the last reset."""
    library = acl()
    library.emu_check_json.restype = ctypes.c_size_t
    library.emu_check_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    size = library.emu_check_json(None, 0) + (1 << 16)
    buffer = ctypes.create_string_buffer(size)
    library.emu_check_json(buffer, size)
    found: list[dict[str, Any]] = json.loads(buffer.value)["findings"]
    return found


def mend() -> None:
    """Clear what a finding did to the devices, and forget it."""
    for device in range(torch.npu.device_count()):
        torch.npu.set_device(device)
        acl().aclrtResetDevice(device)
        torch.npu.synchronize()
    torch.npu.set_device(0)
    acl().emu_check_reset()


def run(name: str, form: str, seed: int) -> dict[str, Any]:
    """One run of one form under one seed, with nothing left of the runs before."""
    mend()
    acl().emu_set_schedule_seed(ctypes.c_uint64(seed), 1)
    error = ""
    try:
        HAZARDS[name].run(form == "green")
    except RuntimeError as raised:
        error = str(raised)
    acl().emu_set_schedule_seed(ctypes.c_uint64(0), 0)
    return {"name": name, "seed": seed, "error": error, "findings": findings()}


def main(form: str, seeds: int, names: list[str]) -> None:
    torch.npu.set_device(0)
    torch.npu.synchronize()
    for name in names:
        for seed in range(1, seeds + 1):
            print(json.dumps(run(name, form, seed)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
