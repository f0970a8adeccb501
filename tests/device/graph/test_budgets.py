# SPDX-License-Identifier: Apache-2.0
"""Streams and events run out as on hardware, at the places and with the codes that CANN has."""

from __future__ import annotations

import pytest

from tests.helpers.emulated import passes

pytestmark = pytest.mark.timeout(120, method="thread")  # a hang is in C

CAPTURE_MANY = """
import torch
x = torch.ones(4, device="npu")
side = torch.npu.Stream()
graphs = []
def capture(fork):
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(stream):
        graph.capture_begin()
        graphs.append(graph)
        y = x * 2
        if fork:
            side.wait_stream(stream)
            with torch.npu.stream(side):
                z = y + 1
            stream.wait_stream(side)
        graph.capture_end()
stream = torch.npu.Stream()
def captured(fork):
    count = 0
    try:
        while True:
            capture(fork)
            count += 1
    except RuntimeError as error:
        return count, str(error)
"""


def test_graphs_use_up_the_streams() -> None:
    passes(
        CAPTURE_MANY
        + """
capture(False)
first, error = captured(False)
assert "error code is 207008" in error and "ASCEND_EMU_STREAM_BUDGET" in error, error
for graph in graphs:
    graph.replay()
torch.npu.synchronize()
# Every graph had one stream: resetting them gives exactly those back.
for graph in graphs[:5]:
    graph.reset()
again, error = captured(False)
assert again == 5, again
assert 40 < first < 95, first  # torch_npu has some tens of its own
""",
        ASCEND_EMU_STREAM_BUDGET="100",
    )


def test_a_fork_costs_one_more_and_fails_where_it_is_made() -> None:
    passes(
        CAPTURE_MANY
        + """
capture(True)
torch.npu.synchronize()
count, error = captured(True)
# An odd number was left: the capture began, and its fork found nothing.
codes = [code for code in ("207008", "207005") if f"error code is {code}" in error]
assert len(codes) == 1, error
print(codes[0])
""",
        ASCEND_EMU_STREAM_BUDGET="100",
        TASK_QUEUE_ENABLE="0",
    )


def test_events_run_out() -> None:
    passes(
        """
        import torch
        events = []
        try:
            for _ in range(100):
                events.append(torch.npu.current_stream().record_event())
        except RuntimeError as error:
            assert "207007" in str(error) and "ASCEND_EMU_EVENT_BUDGET" in str(error), error
            print(len(events))
        n = len(events)
        assert n == 20, n
        events.clear()
        torch.npu.current_stream().record_event().synchronize()
        """,
        ASCEND_EMU_EVENT_BUDGET="20",
        TASK_QUEUE_ENABLE="0",
    )
