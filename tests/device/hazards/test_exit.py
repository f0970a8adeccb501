# SPDX-License-Identifier: Apache-2.0
"""How a process with findings ends: with 66 under strict, whether or not it ever looks.

Most programs here use the C ABI alone, and race without waiting for anything.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.emulated import BARE, OWN_FINDINGS, run_script

FINDINGS = 66
STREAMS = (
    BARE
    + """
def made(create, *arguments):
    handle = ctypes.c_void_p()
    assert create(ctypes.byref(handle), *arguments) == 0
    return handle

acl.aclrtSetDevice(0)
size = ctypes.c_size_t(4096)
one, other = made(acl.aclrtCreateStream), made(acl.aclrtCreateStream)
memory = made(acl.aclrtMalloc, size, 0)

def fill(stream):
    assert acl.aclrtMemsetAsync(memory, size, 1, size, stream) == 0
"""
)
RACE = STREAMS + "fill(one); fill(other)\n"
CLEAN = STREAMS + "fill(one); fill(one)\n"
CATCHES = "assert acl.aclrtSynchronizeDevice() != 0\n"
TORCH_CATCHES = """
import torch
a = torch.zeros(64, device="npu")
torch.npu.synchronize()
with torch.npu.stream(torch.npu.Stream()):
    a.fill_(1)
b = a + 1
try:
    torch.npu.synchronize()
except RuntimeError:
    print("caught")
"""


def ran(
    script: str, mode: str, report: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    more = {"ASCEND_EMU_CHECK": mode, "ASCEND_EMU_CHECK_REPORT": str(report), **environment}
    return run_script(script, **{**OWN_FINDINGS, **more})


@pytest.mark.parametrize(
    ("script", "mode", "code"),
    [
        (RACE, "strict", FINDINGS),
        (RACE, "report", 0),
        (RACE + CATCHES, "strict", FINDINGS),
        (TORCH_CATCHES, "strict", FINDINGS),
        (TORCH_CATCHES, "report", 0),
        (RACE + "sys.exit(3)", "strict", 3),
        (CLEAN, "strict", 0),
    ],
    ids=[
        "never-waits-strict",
        "never-waits-report",
        "catches-strict",
        "torch-catches-strict",
        "torch-report",
        "has-a-status",
        "clean",
    ],
)
def test_the_exit_code(tmp_path: Path, script: str, mode: str, code: int) -> None:
    report = tmp_path / "report.json"
    end = ran(script, mode, report)
    assert end.returncode == code, end.stderr
    found = [each["kind"] for each in json.loads(report.read_text())["findings"]]
    assert found == ([] if script is CLEAN else ["unordered-access"])
    assert (f"exit code {code}" in end.stderr) == (script is not CLEAN)


def test_a_suppressed_finding_leaves_the_code(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("unordered-access memset # the test says so\n")
    report = tmp_path / "report.json"
    end = ran(RACE, "strict", report, ASCEND_EMU_CHECK_SUPPRESSIONS=str(rules))
    assert end.returncode == 0, end.stderr
    assert len(json.loads(report.read_text())["suppressed"]) == 1


def test_forgotten_findings_leave_the_code(tmp_path: Path) -> None:
    end = ran(RACE + CATCHES + "acl.emu_check_reset()", "strict", tmp_path / "report.json")
    assert end.returncode == 0, end.stderr


def test_what_else_runs_at_exit_still_runs(tmp_path: Path) -> None:
    """Handlers that were there first are given the new status; what C has buffered is written.

    on_exit calls with the status first: dprintf then writes to the file of that number.
    """
    seen = tmp_path / "seen"
    script = f"""
libc = ctypes.CDLL(None)
os.dup2(os.open({str(seen)!r}, os.O_CREAT | os.O_WRONLY), {FINDINGS})
text = ctypes.create_string_buffer(b"the handler ran")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
libc.on_exit(ctypes.cast(libc.dprintf, ctypes.c_void_p), text)
libc.printf(b"buffered by C")
"""
    end = ran(BARE + script + RACE.removeprefix(BARE), "strict", tmp_path / "report.json")
    assert end.returncode == FINDINGS, end.stderr
    assert seen.read_text() == "the handler ran"
    assert "buffered by C" in end.stdout


def test_a_report_that_cannot_be_written_is_said() -> None:
    end = ran(RACE, "strict", Path("/dev/full"))
    assert end.returncode == FINDINGS
    assert "cannot write ASCEND_EMU_CHECK_REPORT=/dev/full: No space left" in end.stderr
