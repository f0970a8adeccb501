# SPDX-License-Identifier: Apache-2.0
"""Each kind of finding that no published failure shows, and how findings reach a user: the command,
the report, suppressions. Programs here use the C ABI alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.emulated import BARE, OWN_FINDINGS, run_script

CLI = [sys.executable, "-c", "from vllm_ascend_mrv2.cli.main import main; main()"]
PRELUDE = (
    BARE
    + """
import json
acl.emu_check_json.restype = ctypes.c_size_t
acl.emu_check_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
MB, H2D, D2H = 1 << 20, 1, 2

def ok(code):
    assert code == 0, (code, acl.aclGetRecentErrMsg())

def made(create, *arguments):
    handle = ctypes.c_void_p()
    ok(create(ctypes.byref(handle), *arguments))
    return handle

def size(n):
    return ctypes.c_size_t(n)

def report():
    buffer = ctypes.create_string_buffer(1 << 20)
    acl.emu_check_json(buffer, 1 << 20)
    return json.loads(buffer.value)

def kinds():
    return [finding["kind"] for finding in report()["findings"]]

ok(acl.aclrtSetDevice(0))
stream, other = made(acl.aclrtCreateStream), made(acl.aclrtCreateStream)
device = made(acl.aclrtMalloc, size(MB), 0)
pinned = made(acl.aclrtMallocHost, size(MB))
"""
)


def found(script: str, **environment: str) -> list[str]:
    """Kinds of the findings of a script that ends by `print(kinds())`."""
    ran = run_script(PRELUDE + script, **{**OWN_FINDINGS, **environment})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    kinds: list[str] = json.loads(ran.stdout.splitlines()[-1].replace("'", '"'))
    return kinds


COPY = "ok(acl.aclrtMemcpyAsync(device, size(MB), pinned, size(MB), H2D, stream))\n"
FILL = "ok(acl.aclrtMemsetAsync(device, size(MB), 1, size(MB), stream))\n"
WAIT = "ok(acl.aclrtSynchronizeStream(stream))\n"


@pytest.mark.parametrize(
    ("kind", "use", "give_back"),
    [
        ("freed-in-use", FILL, "ok(acl.aclrtFree(device))\n"),
        ("host-memory-freed", COPY, "ok(acl.aclrtFreeHost(pinned))\n"),
    ],
)
def test_memory_given_back_in_use(kind: str, use: str, give_back: str) -> None:
    # The task has run long before: what counts is that nobody knows.
    assert found(use + "import time; time.sleep(0.1)\n" + give_back + "print(kinds())") == [kind]
    assert found(use + WAIT + give_back + "print(kinds())") == []


def test_what_is_torn_down_after_a_fault_is_no_finding() -> None:
    """Nobody can wait for a device that has failed."""
    script = FILL + "import time; time.sleep(0.3)\nok(acl.aclrtFree(device))\nprint(kinds())"
    assert found(script) == ["freed-in-use"]
    assert found(script, ASCEND_EMU_INJECT="error:memset:1") == []
    reason = "print([finding['reason'] for finding in report()['suppressed']])"
    assert found(script + "\n" + reason, ASCEND_EMU_INJECT="error:memset:1") == [
        "after a fault of the device"
    ]


def test_an_operation_on_freed_memory() -> None:
    held = (
        "word = made(acl.aclrtMalloc, size(4096), 0)\n"
        "ok(acl.aclrtMemset(word, size(8), 0, size(8)))\n"
    )
    script = (
        held
        + "ok(acl.aclrtValueWait(word, ctypes.c_uint64(1), 0, stream))\n"
        + FILL
        + "ok(acl.aclrtFree(device))\n"
        + "ok(acl.aclrtValueWrite(word, ctypes.c_uint64(1), 0, other))\n"
        + "ok(acl.aclrtSynchronizeDevice())\n"
        + "print(kinds())"
    )
    # Nobody had used the memory when it was freed, so that the operation is all there is to see; it
    # is not run, and the program goes on.
    assert found(script) == ["use-after-free"]


RESERVED = """
class Location(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("type", ctypes.c_int)]

class Property(ctypes.Structure):
    _fields_ = [("handle", ctypes.c_int), ("allocation", ctypes.c_int), ("attribute", ctypes.c_int),
                ("location", Location), ("reserve", ctypes.c_uint64)]

page = size(2 * MB)
device = made(acl.aclrtReserveMemAddress, page, size(0), None, ctypes.c_uint64(0))

def map_memory():
    wanted = Property(0, 0, 0, Location(0, 1), 0)
    physical = made(acl.aclrtMallocPhysical, page, ctypes.byref(wanted), ctypes.c_uint64(0))
    ok(acl.aclrtMapMem(device, page, size(0), physical, ctypes.c_uint64(0)))
    ok(acl.aclrtFreePhysical(physical))

map_memory()
"""


def test_memory_unmapped_in_use_is_freed_in_use() -> None:
    """Where torch_npu's expandable segments shrink."""
    unmap = "ok(acl.aclrtUnmapMem(device))\n"
    slow = "import time; time.sleep(0.1)\n"
    # What is mapped there next is other memory: no race with what was done to the first.
    again = unmap + "map_memory()\n" + FILL.replace("stream))", "other))")
    assert found(RESERVED + FILL + slow + again + "print(kinds())") == ["freed-in-use"]
    assert found(RESERVED + FILL + WAIT + again + "print(kinds())") == []


READ = "ok(acl.aclrtMemcpy(ctypes.create_string_buffer(64), size(64), device, size(64), D2H))\n"


def test_a_synchronous_copy_waits_for_no_stream() -> None:
    assert found(COPY + READ + WAIT + "print(kinds())") == ["unordered-access"]
    assert found(COPY + WAIT + READ + "print(kinds())") == []


def test_the_host_comes_after_what_its_code_in_a_stream_came_after() -> None:
    callback = """
import threading
ran = threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(_):
    ran.set()
ok(acl.aclrtLaunchHostFunc(stream, host, None))
ran.wait()
"""
    assert found(COPY + callback + READ + "print(kinds())") == []


def test_disjoint_bytes_are_no_conflict() -> None:
    half = "half = ctypes.c_void_p(device.value + MB // 2)\n"
    script = half + (
        "ok(acl.aclrtMemsetAsync(device, size(MB // 2), 1, size(MB // 2), stream))\n"
        "ok(acl.aclrtMemsetAsync(half, size(MB // 2 - {over}), 1, size(MB // 2), other))\n"
        "ok(acl.aclrtSynchronizeDevice())\nprint(kinds())"
    )
    assert found(script.format(over=0)) == []
    overlap = script.replace("device.value + MB // 2", "device.value + MB // 2 - 1")
    assert found(overlap.format(over=0)) == ["unordered-access"]


PROGRAM = """
import torch

a = torch.zeros(64, device="npu")
torch.npu.synchronize()
side = torch.npu.Stream()
with torch.npu.stream(side):
    a.fill_(1)  # WRITE
b = a + 1  # READ
torch.npu.synchronize()
print("went on")
"""


def check_program(
    tmp_path: Path, *options: str, text: str = PROGRAM
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(text)
    ran = subprocess.run(
        [
            *(*CLI, "emulator", "run", *options, "--check-report", str(report)),
            *("--", sys.executable, str(program)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ran, json.loads(report.read_text()) if report.exists() else {}


def line_of(mark: str, text: str = PROGRAM) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if mark in line)


def test_report_names_both_lines_and_goes_on(tmp_path: Path) -> None:
    ran, report = check_program(tmp_path, "--check")
    assert ran.returncode == 0, ran.stderr
    assert "went on" in ran.stdout
    (finding,) = report["findings"]
    write, read = finding["operations"]
    assert write["stack"] == [f"{tmp_path}/program.py:{line_of('WRITE')} in <module>"]
    assert read["stack"] == [f"{tmp_path}/program.py:{line_of('READ')} in <module>"]
    assert write["tensor"] == "Float [64]"
    assert "record an event on stream" in finding["advice"]
    assert "1 findings" in ran.stderr


HELPER = PROGRAM.replace("a.fill_(1)  # WRITE", "fill(a)  # CALLER").replace(
    "a = torch.zeros", "def fill(tensor):\n    tensor.fill_(1)  # WRITE\n\na = torch.zeros"
)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_launch_in_a_helper_takes_one_frame_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """The helper is right for most who call it: one of them has to wait, and depth 2 says which."""
    monkeypatch.setenv("ASCEND_EMU_CHECK_DEPTH", str(depth))
    _, report = check_program(tmp_path, "--check", text=HELPER)
    (finding,) = report["findings"]
    lines = [
        f"{tmp_path}/program.py:{line_of('WRITE', HELPER)} in fill",
        f"{tmp_path}/program.py:{line_of('CALLER', HELPER)} in <module>",
    ]
    assert finding["operations"][0]["stack"] == lines[:depth]


def test_strict_is_an_error_in_the_program(tmp_path: Path) -> None:
    ran, report = check_program(tmp_path, "--check=strict")
    assert ran.returncode != 0
    assert "went on" not in ran.stdout
    assert "unordered-access" in ran.stderr.split("Traceback")[-1]
    assert report["mode"] == "strict"


def test_a_suppressed_finding_is_none_but_is_kept(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("# none of these\nunordered-access *program.py:* # the test says so\n")
    ran, report = check_program(tmp_path, "--check=strict", "--suppressions", str(rules))
    assert ran.returncode == 0, ran.stderr
    assert report["findings"] == []
    assert [kept["reason"] for kept in report["suppressed"]] == ["the test says so"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("unordered-access *", "there is no reason"),
        ("unordered-access # because", "there is no pattern"),
        ("no-such-kind * # because", "there is no kind 'no-such-kind'"),
        ("deadlock * # because", "a deadlock cannot be suppressed"),
    ],
)
def test_a_bad_suppression_ends_the_program(tmp_path: Path, line: str, why: str) -> None:
    rules = tmp_path / "rules"
    rules.write_text(line + "\n")
    ran, _ = check_program(tmp_path, "--check", "--suppressions", str(rules))
    assert ran.returncode == 2
    assert f"rules:1: {why}" in ran.stderr
