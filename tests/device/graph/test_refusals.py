# SPDX-License-Identifier: Apache-2.0
"""What a capture refuses, with CANN's code and a text, and that everything works on afterwards.

The full table of codes is in csrc/emulator/tests/graph_test.cpp; here it is what torch_npu makes
of them. A capture that cannot end is tested in a process of its own: torch_npu's allocator goes on
to look at the graph that it belonged to.
"""

from __future__ import annotations

import ctypes
import textwrap
import threading
from collections.abc import Callable

import pytest
import torch

from tests.device.graph.capturing import capture
from tests.helpers.emulated import acl, recent_error, run_script

pytestmark = pytest.mark.timeout(150, method="thread")  # a hang is in C


def captured_event() -> torch.npu.Event:
    stream = torch.npu.current_stream()
    event = stream.record_event()
    assert stream.npu_stream  # reading the handle waits for torch_npu's task queue
    return event


REFUSED_IN_A_CAPTURE: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "reading a value": (lambda x: x.sum().item(), "107030|107027"),
    "copying to the host": (lambda x: x.cpu(), "107030|107027"),
    "copying from pageable memory": (lambda x: x.copy_(torch.ones(4)), "107030|107027"),
    "synchronising the stream": (lambda x: torch.npu.current_stream().synchronize(), "107027"),
    "synchronising the device": (lambda x: torch.npu.synchronize(), "107027"),
    "asking the stream": (lambda x: torch.npu.current_stream().query(), "107027"),
    "waiting for a captured event": (lambda x: captured_event().synchronize(), "107028"),
    "asking a captured event": (lambda x: captured_event().query(), "107028"),
    "a shape that the device decides": (lambda x: x.nonzero(), "107030|107027"),
}


@pytest.mark.parametrize("what", REFUSED_IN_A_CAPTURE)
def test_refused_in_a_capture(what: str) -> None:
    call, codes = REFUSED_IN_A_CAPTURE[what]
    x = torch.zeros(4, device="npu")
    with capture() as graph:
        x += 1
        with pytest.raises(RuntimeError, match=f"(?s)error code is ({codes}).*captur"):
            call(x)
        x += 1
    assert x.cpu().tolist() == [0.0] * 4
    graph.replay()
    assert x.cpu().tolist() == [2.0] * 4


@pytest.mark.parametrize("task_queue", ["0", "1"])
def test_a_copy_from_pageable_memory_that_does_not_wait(task_queue: str) -> None:
    """CANN would wait for the stream. With a task queue the error ends torch_npu's queue."""
    result = run_script(
        """
        import torch
        from tests.device.graph.capturing import capture
        x = torch.zeros(4, device="npu")
        with capture():
            x.copy_(torch.ones(4), non_blocking=True)
            torch.npu.current_stream().record_event().synchronize()
        """,
        TASK_QUEUE_ENABLE=task_queue,
    )
    assert result.returncode == 1
    assert "with pageable host memory this call waits" in result.stderr, result.stderr


def test_elapsed_time_of_captured_events() -> None:
    with capture():
        stream = torch.npu.current_stream()
        start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        end.record(stream)
        with pytest.raises(RuntimeError, match="107028"):
            start.elapsed_time(end)


@pytest.mark.parametrize(
    ("mode", "here", "elsewhere"),
    [("global", False, False), ("thread_local", False, True), ("relaxed", True, True)],
)
def test_capture_modes(mode: str, here: bool, elsewhere: bool) -> None:
    """Whether this thread and another may copy synchronously on a stream that is not captured."""
    side = torch.npu.Stream()
    host = torch.arange(4.0)

    def copies() -> bool:
        with torch.npu.stream(side):
            try:
                torch.zeros(4, device="npu").copy_(host)
            except RuntimeError as error:
                refusals.append(str(error))
                return False
        return True

    answers: list[bool] = []
    refusals: list[str] = []
    with capture(mode=mode):
        thread = threading.Thread(target=lambda: answers.append(copies()))
        answers.append(copies())
        thread.start()
        thread.join()
    assert answers == [here, elsewhere]
    assert all("107030" in text or "107041" in text for text in refusals), refusals
    assert copies()


def test_allocating_is_allowed() -> None:
    """CANN does not list aclrtMalloc among its unsafe calls, and torch_npu relies on that."""
    with capture() as graph:
        out = torch.ones(3 << 20, device="npu") * 2
    graph.replay()
    assert out.cpu().unique().tolist() == [2.0]


def test_the_default_stream() -> None:
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    x = torch.zeros(4, device="npu")
    with capture():
        code = acl().aclrtMemsetAsync(
            ctypes.c_void_p(x.data_ptr()), 16, 1, 16, ctypes.c_void_p(None)
        )
        assert code == 107031
        assert "default stream" in recent_error()
    assert x.cpu().tolist() == [0.0] * 4


FAILING_ENDS = {
    "a fork that is not joined": (
        """
        with torch.npu.stream(side):
            side.wait_stream(stream)
            x + 1
        """,
        "107025",
        "joined again",
    ),
    "a fork that goes on after its join": (
        """
        with torch.npu.stream(side):
            side.wait_stream(stream)
            x + 1
            stream.wait_stream(side)
            x + 1
        """,
        "107025",
        "joined again",
    ),
    "an open task group": ("torch.npu.graph_task_group_begin(stream)", "107033", "not ended"),
    "a wait for an event from before": (
        """
        try:
            stream.wait_event(before)
        except RuntimeError as error:
            assert "107024" in str(error), error
        """,
        "507903",
        "outside of the capture",
    ),
    "a copy inside a task group": (
        """
        torch.npu.graph_task_group_begin(stream)
        try:
            x.copy_(pinned, non_blocking=True)
            torch.npu.graph_task_group_end(stream)
        except RuntimeError as error:
            print(error)
        """,
        "507903",
        "only operators may be",
    ),
}


@pytest.mark.parametrize("what", FAILING_ENDS)
def test_a_capture_that_cannot_end(what: str) -> None:
    body, code, text = FAILING_ENDS[what]
    script = (
        """
import torch
x = torch.zeros(4, device="npu")
pinned = torch.ones(4).pin_memory()
stream, side = torch.npu.Stream(), torch.npu.Stream()
before = torch.npu.default_stream().record_event()
torch.npu.synchronize()
graph = torch.npu.NPUGraph()
with torch.npu.stream(stream):
    graph.capture_begin()
"""
        + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        + f"""
    try:
        graph.capture_end()
    except RuntimeError as error:
        assert "error code is {code}" in str(error) and {text!r} in str(error), error
        print("refused")
assert not torch.npu.is_current_stream_capturing()
for each in (stream, side):
    with torch.npu.stream(each):
        x += 1
        each.synchronize()
assert x.cpu().tolist() == [2.0] * 4
other = torch.npu.NPUGraph()
with torch.npu.graph(other, stream=stream):
    x += 1
other.replay()
assert x.cpu().tolist() == [3.0] * 4
print("usable")
"""
    )
    # Without a task queue: a refused launch is reported where it was made.
    result = run_script(script, TASK_QUEUE_ENABLE="0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-2:] == ["refused", "usable"], result.stdout


def test_task_queue_level_2_is_refused_with_what_to_set() -> None:
    result = run_script(
        """
        import torch
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            pass
        """,
        TASK_QUEUE_ENABLE="2",
    )
    assert result.returncode == 1
    assert "export TASK_QUEUE_ENABLE=1/0" in result.stderr
