# SPDX-License-Identifier: Apache-2.0
"""The life of a process: forks, ends while work is queued, settings, several on one device."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.helpers.emulated import BARE, passes, run_script


def test_python_is_told_of_devices_as_cann_tells_it() -> None:
    import acl  # beside the libraries, where a toolkit has it

    assert acl.rt.get_device_count() == (torch.npu.device_count(), 0)
    assert acl.get_soc_name() == torch.npu.get_device_name(0)


@pytest.mark.parametrize("queue", ["0", "1"])
def test_leaving_while_work_is_queued(queue: str) -> None:
    """The interpreter's own end: torch_npu waits for the queue, and then all threads end."""
    output = passes(
        """
        import torch
        x = torch.randn(700, 700, device="npu")
        for _ in range(200):
            y = x @ x
        print("busy", flush=True)
        """,
        TASK_QUEUE_ENABLE=queue,
    )
    assert output == "busy\n"


# A stream that waits for an external event which nobody records, with much queued behind.
STUCK = (
    BARE
    + """
        event, stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert acl.aclrtSetDevice(0) == 0
        assert acl.aclrtCreateEventWithFlag(ctypes.byref(event), 0x20) == 0
        assert acl.aclrtCreateStream(ctypes.byref(stream)) == 0
        assert acl.aclrtStreamWaitEvent(stream, event) == 0
        for _ in range(1000):
            assert acl.aclrtRecordEvent(event, None) == 0
            assert acl.aclrtResetEvent(event, None) == 0
            assert acl.aclrtStreamWaitEvent(stream, event) == 0
    """
)


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_leaving_while_a_stream_waits_for_ever(leave: str, code: int) -> None:
    assert run_script(f"{STUCK}    {leave}\n", timeout_s=60).returncode == code


def test_nothing_is_left_behind() -> None:
    before = set(Path("/dev/shm").iterdir())
    passes(
        """
        import torch
        x = torch.ones(1 << 20, device="npu")
        del x
        torch.npu.empty_cache()
        """,
        PYTORCH_NPU_ALLOC_CONF="expandable_segments:True",
    )
    left = [p for p in set(Path("/dev/shm").iterdir()) - before if "emu" in p.name]
    assert not left


def test_a_fork_after_first_use_fails_with_advice_and_does_not_hang() -> None:
    passes(
        """
        import ctypes, os, torch
        x = torch.ones(4, device="npu") + 1
        acl = ctypes.CDLL("libascendcl.so")
        acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
        pid = os.fork()
        if pid == 0:
            code = acl.aclrtSetDevice(0)
            text = acl.aclGetRecentErrMsg()
            os._exit(0 if code == 107002 and b"'spawn'" in text else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert x.cpu().tolist() == [2.0] * 4  # the parent goes on
        """
    )


def test_a_fork_before_first_use_may_use_the_device() -> None:
    passes(
        BARE
        + """
        count = ctypes.c_uint32()
        assert acl.aclrtGetDeviceCount(ctypes.byref(count)) == 0 and count.value == 2
        pid = os.fork()
        if pid == 0:
            os._exit(acl.aclrtSetDevice(0) or acl.aclrtSynchronizeDevice())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert acl.aclrtSetDevice(0) == 0 and acl.aclrtSynchronizeDevice() == 0
        """
    )


def test_several_processes_use_one_device() -> None:
    script = """
import torch
x = torch.full((1000,), SEED, device="npu")
for _ in range(100):
    x = x + 1
assert (x.cpu() == SEED + 100).all()
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script.replace("SEED", str(seed))])
        for seed in range(3)
    ]
    assert [process.wait(120) for process in processes] == [0, 0, 0]


@pytest.mark.parametrize(
    ("visible", "count"), [("1", 1), ("1,0", 2), ("0,7,1", 1), ("", 0), (None, 2)]
)
def test_visible_devices(visible: str | None, count: int) -> None:
    output = passes(
        BARE
        + """
        count = ctypes.c_uint32()
        assert acl.aclrtGetDeviceCount(ctypes.byref(count)) == 0
        print(count.value, [acl.aclrtSetDevice(index) for index in range(3)].count(0))
        """,
        ASCEND_RT_VISIBLE_DEVICES=visible,
    )
    assert output.split() == [str(count)] * 2


def test_visible_devices_may_be_set_until_the_first_use() -> None:
    """vLLM sets the variable for its workers after everything was imported."""
    output = passes(
        """
        import os, torch
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1"
        torch.npu.set_device(0)
        try:
            torch.npu.set_device(1)
        except Exception:
            print(torch.npu.device_count(), torch.npu.mem_get_info(0)[1] >> 30)
        """,
        ASCEND_EMU_HBM_BYTES=str(1 << 30),
    )
    assert output.split() == ["1", "1"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ASCEND_EMU_DEVICES", "two"),
        ("ASCEND_EMU_HBM_BYTES", "16G"),
        ("ASCEND_EMU_GUARD", "yes"),
        ("ASCEND_EMU_SCHEDULE_SEED", "-1"),
        ("ASCEND_EMU_COUNTERS", "/nonexistent/counters-%p.json"),
        ("ASCEND_EMU_TRACE", "/nonexistent/trace.json"),
        ("ASCEND_EMU_CHECK_REPORT", "/"),
    ],
)
def test_a_setting_that_is_not_valid_ends_the_process(name: str, value: str) -> None:
    result = run_script(BARE + "acl.aclrtSetDevice(0)", **{name: value})
    assert result.returncode == 2
    assert f"{name}='{value}' is not valid: expected" in result.stderr


def test_a_setting_that_there_is_not_ends_the_process() -> None:
    result = run_script(BARE + "acl.aclrtSetDevice(0)", ASCEND_EMU_GAURD="1")
    assert result.returncode == 2
    assert "there is no switch ASCEND_EMU_GAURD: " in result.stderr
    assert "ASCEND_EMU_GUARD" in result.stderr


def test_a_file_that_cannot_be_written_whole_is_said_and_leaves_the_earlier_one(
    tmp_path: Path,
) -> None:
    script = BARE + "acl.aclrtSetDevice(0)"
    counters = tmp_path / "counters.json"
    assert run_script(script, ASCEND_EMU_COUNTERS=str(counters)).returncode == 0
    earlier = counters.read_text()
    assert json.loads(earlier)["version"] == 1
    limited = f"{script}; import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))"
    result = run_script(limited, ASCEND_EMU_COUNTERS=str(counters))
    assert result.returncode == 0
    assert f"cannot write ASCEND_EMU_COUNTERS={counters}: File too large" in result.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {counters.name: earlier}


def test_a_device_file_is_written_to_and_not_replaced() -> None:
    result = run_script(BARE + "acl.aclrtSetDevice(0)", ASCEND_EMU_COUNTERS="/dev/full")
    assert result.returncode == 0
    assert "cannot write ASCEND_EMU_COUNTERS=/dev/full: No space left" in result.stderr
    assert Path("/dev/full").is_char_device()


def test_a_process_that_only_counts_devices_is_quick_and_has_no_workers() -> None:
    output = passes(
        BARE
        + """
        n = len(os.listdir("/proc/self/task"))
        count = ctypes.c_uint32()
        assert acl.aclrtGetDeviceCount(ctypes.byref(count)) == 0 and count.value == 2
        print(len(os.listdir("/proc/self/task")) - n)
        """
    )
    assert output == "0\n"


def test_a_server_that_is_stopped_by_a_signal_ends_within_a_second() -> None:
    script = """
import signal, sys, time, torch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
x = torch.randn(500, 500, device="npu")
print("up", flush=True)
while True:
    x = (x @ x).clamp(-1, 1)
    torch.npu.synchronize()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    started = time.monotonic()
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert time.monotonic() - started < 20  # generous: machines are shared


def test_an_idle_process_is_idle() -> None:
    """torch_npu's threads that poll for something to release wake once a millisecond, at most."""
    output = passes(
        """
        import pathlib, time
        import torch
        with torch.npu.stream(torch.npu.Stream()):
            torch.ones(4, device="npu") + 1
        torch.npu.synchronize()

        def wakes():
            threads = pathlib.Path("/proc/self/task").iterdir()
            texts = [(each / "status").read_text() for each in threads]
            return [
                int(text.split("\\nvoluntary_ctxt_switches:")[1].split()[0])
                for text in texts if "Name:\\trelease_thread" in text
            ]

        before, began = sum(wakes()), time.monotonic()
        time.sleep(1)
        print(len(wakes()), (sum(wakes()) - before) / len(wakes()) / (time.monotonic() - began))
        """,
        TASK_QUEUE_ENABLE="1",
    )
    threads, wakes_per_second = output.split()
    assert int(threads) >= 1
    assert 0 < float(wakes_per_second) < 2000  # without what the emulator sets: 10,000
