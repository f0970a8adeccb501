# SPDX-License-Identifier: Apache-2.0
"""The counters say what happened: copies by kind and memory, waits by call and thread, steps."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import torch

from tests.helpers.emulated import Gate, Step, acl, counters, passes, reset_counters


def test_copies_by_direction_mode_and_memory() -> None:
    pageable = torch.zeros(256, dtype=torch.uint8)
    pinned = torch.zeros(512, dtype=torch.uint8).pin_memory()
    device = torch.zeros(512, dtype=torch.uint8, device="npu")
    torch.npu.synchronize()
    reset_counters()
    device[:256].copy_(pageable)
    device.copy_(pinned, non_blocking=True)
    pinned.copy_(device, non_blocking=True)
    pageable.copy_(device[:256])
    torch.npu.synchronize()
    copies = counters()["total"]["copies"]
    assert copies["h2d"] == {
        "sync": {"pinned": {"count": 0, "bytes": 0}, "pageable": {"count": 1, "bytes": 256}},
        "async": {"pinned": {"count": 1, "bytes": 512}, "pageable": {"count": 0, "bytes": 0}},
    }
    assert copies["d2h"] == {
        "sync": {"pinned": {"count": 0, "bytes": 0}, "pageable": {"count": 1, "bytes": 256}},
        "async": {"pinned": {"count": 1, "bytes": 512}, "pageable": {"count": 0, "bytes": 0}},
    }
    assert copies["h2h"]["sync"]["pageable"]["count"] == 0


def test_launches_by_name_events_and_waits() -> None:
    x = torch.ones(4, device="npu")
    torch.npu.synchronize()
    reset_counters()
    y = x * x
    z = y * y
    event = torch.npu.Event()
    event.record()
    torch.npu.Stream().wait_event(event)
    torch.npu.synchronize()
    total = counters()["total"]
    assert total["launches"] == {"aclnnMul": 2}
    assert total["launch_count"] == 2
    assert (total["event_records"], total["event_waits"]) == (1, 1)
    assert total["host_wait_count"] >= 1
    assert z.cpu().tolist() == [1.0] * 4


def test_a_wait_counts_as_blocked_only_if_it_was() -> None:
    event = torch.npu.Event()
    event.record()
    torch.npu.synchronize()
    reset_counters()
    event.synchronize()
    waits = counters()["total"]["host_waits"]["aclrtSynchronizeEvent"]
    assert (waits["count"], waits["blocked"], waits["ns"]) == (1, 0, 0)
    with Gate() as gate:
        gate.close()
        event.record()
        timer = threading.Timer(0.05, gate.open)
        timer.start()
        event.synchronize()
        timer.join()
    waits = counters()["total"]["host_waits"]["aclrtSynchronizeEvent"]
    assert (waits["count"], waits["blocked"]) == (2, 1)
    assert 20e6 < waits["ns"] < 5e9


def test_steps_tell_the_waits_of_other_threads_apart() -> None:
    stream = torch.npu.current_stream()
    x = torch.ones(4, device="npu")
    torch.npu.synchronize()
    reset_counters()

    def wait_elsewhere() -> None:
        torch.npu.set_device(0)
        stream.synchronize()

    for _ in range(5):
        with Step("decode"):
            x.mul_(1)
            waiter = threading.Thread(target=wait_elsewhere, name="output")
            waiter.start()
            waiter.join()
    with Step("prefill"):
        x.add_(1)
        stream.synchronize()
    snapshot = counters()
    decode, prefill = snapshot["steps"]["decode"], snapshot["steps"]["prefill"]
    assert (decode["count"], prefill["count"]) == (5, 1)
    assert decode["this_thread"]["host_wait_count"] == 0
    assert decode["other_threads"]["host_wait_count"] == 5
    assert prefill["this_thread"]["host_wait_count"] == 1

    def launches(step: dict, name: str) -> int:
        # torch_npu launches from this thread or from its queue's, by TASK_QUEUE_ENABLE.
        return sum(step[side]["launches"].get(name, 0) for side in ("this_thread", "other_threads"))

    assert launches(decode, "aclnnInplaceMuls") + launches(decode, "aclnnInplaceMul") == 5
    assert acl().emu_step_end() == -1  # every step was closed


def test_reset_starts_from_zero() -> None:
    torch.ones(4, device="npu").add_(1)
    torch.npu.synchronize()
    reset_counters()
    snapshot = counters()
    assert snapshot["total"]["launch_count"] == 0
    assert snapshot["total"]["host_wait_count"] == 0
    assert snapshot["steps"] == {}
    assert all(thread["counters"]["launch_count"] == 0 for thread in snapshot["threads"])


def test_files_at_exit(tmp_path: Path) -> None:
    passes(
        """
        import torch
        x = torch.ones(4, device="npu") + 1
        x.cpu()
        """,
        ASCEND_EMU_COUNTERS=str(tmp_path / "counters-%p.json"),
        ASCEND_EMU_TRACE=str(tmp_path / "trace.json"),
    )
    (path,) = tmp_path.glob("counters-*.json")
    snapshot = json.loads(path.read_text())
    assert path.name == f"counters-{snapshot['pid']}.json"
    assert sum(snapshot["total"]["launches"].values()) >= 1
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"aclnnAdds", "aclrtMemcpy"} <= names or {"aclnnAdd", "aclrtMemcpy"} <= names
    device_events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert all(event["dur"] >= 0 for event in device_events)
    assert device_events
