# SPDX-License-Identifier: Apache-2.0
"""Capture and replay on torch_npu: what a replay computes, in which order, and when."""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path

import pytest
import torch

from tests.device.graph.capturing import capture
from tests.helpers.emulated import WAIT_GEQ, Gate, acl, check, counters, handle, passes

pytestmark = pytest.mark.timeout(90, method="thread")  # a hang is in C


def test_a_capture_runs_nothing_and_a_replay_runs_all_of_it() -> None:
    x = torch.tensor([1.0, 2.0], device="npu")
    total = torch.zeros(2, device="npu")
    with capture() as graph:
        assert torch.npu.is_current_stream_capturing()
        y = torch.softmax(x, -1) * 2
        total += y
    assert not torch.npu.is_current_stream_capturing()
    assert total.cpu().tolist() == [0, 0]
    for value in (torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 5.0])):
        x.copy_(value)
        total.zero_()
        graph.replay()
        graph.replay()
        torch.testing.assert_close(y.cpu(), torch.softmax(value, -1) * 2)
        torch.testing.assert_close(total.cpu(), torch.softmax(value, -1) * 4)


def test_replaying_does_not_wait_and_stays_in_stream_order() -> None:
    x = torch.zeros(1, device="npu")
    with capture() as graph:
        x *= 2
        x += 1
    with Gate() as gate:
        gate.close()
        for value in range(3):
            x.fill_(value)
            graph.replay()
            graph.replay()
        assert not torch.npu.current_stream().query()
        gate.open()
    assert x.cpu().tolist() == [2 * (2 * 2 + 1) + 1]


@pytest.mark.parametrize("task_queue", ["1", "0"])
def test_forks_and_joins(task_queue: str) -> None:
    passes(
        """
        import torch
        x = torch.arange(4.0, device="npu")
        graph, side, deep = torch.npu.NPUGraph(), torch.npu.Stream(), torch.npu.Stream()
        with torch.npu.graph(graph):
            main = torch.npu.current_stream()
            a = x * 2
            side.wait_stream(main)
            with torch.npu.stream(side):
                b = a + 10
                deep.wait_stream(side)
                with torch.npu.stream(deep):
                    c = b * b
                d = b - 1
                side.wait_stream(deep)
            e = a - 1
            main.wait_stream(side)
            out = c + d + e
        for step in range(20):
            x.fill_(step)
            graph.replay()
            a0 = torch.full((4,), step * 2.0)
            expected = (a0 + 10) ** 2 + (a0 + 9) + (a0 - 1)
            torch.testing.assert_close(out.cpu(), expected)
        """,
        TASK_QUEUE_ENABLE=task_queue,
        ASCEND_EMU_SCHEDULE_SEED="11",
        ASCEND_EMU_GUARD="1",
    )


def test_branches_run_side_by_side() -> None:
    """Both branches cross a gate that the other opens: one after the other would never end."""
    words = torch.zeros(2, dtype=torch.int64, device="npu")
    here, there = (ctypes.c_void_p(words.data_ptr() + 8 * i) for i in range(2))
    side = torch.npu.Stream()

    def cross(mine: ctypes.c_void_p, other: ctypes.c_void_p, stream: torch.npu.Stream) -> None:
        check(acl().aclrtValueWrite(mine, ctypes.c_uint64(1), 0, handle(stream)))
        check(acl().aclrtValueWait(other, ctypes.c_uint64(1), WAIT_GEQ, handle(stream)))

    with capture() as graph:
        main = torch.npu.current_stream()
        words.zero_()
        side.wait_stream(main)
        cross(here, there, side)
        cross(there, here, main)
        main.wait_stream(side)
    graph.replay()
    deadline = time.monotonic() + 10
    while not torch.npu.current_stream().query():
        assert time.monotonic() < deadline, "the branches wait for each other in turn"
        time.sleep(0.001)
    assert words.cpu().tolist() == [1, 1]


def test_graphs_that_share_a_pool() -> None:
    pool = torch.npu.graph_pool_handle()
    x = torch.ones(1 << 20, device="npu")
    graphs, outputs = [], []
    before = torch.npu.memory_reserved()
    for scale in (2.0, 3.0, 4.0):
        with capture(pool=pool) as graph:
            hidden = (x * scale).exp().log()
            outputs.append((hidden + 1).sum())
            del hidden
        graphs.append(graph)
    # Each capture reuses what the one before has freed: two buffers of 4 MB, not six.
    assert torch.npu.memory_reserved() - before <= 24 << 20
    for graph, output, scale in zip(graphs, outputs, (2.0, 3.0, 4.0), strict=True):
        graph.replay()
        torch.testing.assert_close(output.cpu() / (1 << 20), torch.tensor(scale + 1))
    assert graphs[0].pool() == pool


def test_a_pinned_source_is_read_at_each_replay() -> None:
    source = torch.tensor([1.0, 2.0]).pin_memory()
    target = torch.zeros(2, device="npu")
    with capture() as graph:
        target.copy_(source, non_blocking=True)
    for value in (5.0, 7.0):
        source.fill_(value)
        graph.replay()
        assert target.cpu().tolist() == [value, value]
    # Late: what is there when the copy runs, not what was there when the replay was asked for.
    with Gate() as gate:
        gate.close()
        source.fill_(8.0)
        graph.replay()
        source.fill_(9.0)
        gate.open()
    assert target.cpu().tolist() == [9.0, 9.0]


def test_a_copy_to_pinned_memory_is_captured() -> None:
    x = torch.zeros(2, device="npu")
    result = torch.zeros(2).pin_memory()
    with capture() as graph:
        result.copy_(x + 1, non_blocking=True)
    x.fill_(4)
    graph.replay()
    torch.npu.synchronize()
    assert result.tolist() == [5.0, 5.0]


def test_random_numbers_advance_from_replay_to_replay() -> None:
    torch.npu.manual_seed(123)
    eager = [torch.rand(8, device="npu").cpu() for _ in range(3)]
    torch.npu.manual_seed(123)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = torch.rand(8, device="npu")
    torch.npu.manual_seed(123)
    for expected in eager:
        graph.replay()
        torch.testing.assert_close(out.cpu(), expected)


def test_debug_dump(tmp_path: Path) -> None:
    x = torch.ones(2, device="npu")
    side = torch.npu.Stream()
    with capture() as graph:
        main = torch.npu.current_stream()
        y = x + 1
        side.wait_stream(main)
        with torch.npu.stream(side):
            z = y * y
        main.wait_stream(side)
        y - z
    path = tmp_path / "graph.json"
    with pytest.warns(UserWarning, match="debug_dump"):
        graph.debug_dump(str(path))
    events = json.loads(path.read_text())
    by_stream: dict[str, list[str]] = {}
    for event in events:
        by_stream.setdefault(event["tid"], []).append(event["name"].split()[0])
    assert sorted(by_stream.values()) == [
        ["EVENT_WAIT", "aclnnMul", "EVENT_RECORD"],
        ["aclnnAdd", "EVENT_RECORD", "EVENT_WAIT", "aclnnSub"],
    ] or sorted(by_stream.values()) == [
        ["EVENT_WAIT", "aclnnMul", "EVENT_RECORD"],
        ["aclnnAdds", "EVENT_RECORD", "EVENT_WAIT", "aclnnSub"],
    ]


def test_reset_while_idle_and_while_in_flight() -> None:
    x = torch.zeros(4, device="npu")
    with capture() as graph:
        x += 1
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with capture() as graph:
        for _ in range(50):
            x += 1
    for _ in range(4):
        graph.replay()
    graph.reset()  # waits for the replays, as CANN does
    del graph
    torch.npu.empty_cache()
    assert x.cpu().tolist() == [200.0] * 4


def test_a_graph_that_goes_leaves_nothing() -> None:
    before = counters()
    for _ in range(3):
        with capture() as graph:
            torch.ones(4, device="npu") * 2
        graph.replay()
        torch.npu.synchronize()
        del graph
    after = counters()
    assert after["graphs"] == before["graphs"]
    for key in ("graph_captures", "graph_replays", "graphs_destroyed"):
        assert after["total"][key] - before["total"][key] == 3


def test_make_graphed_callables() -> None:
    """In a process of its own: torch_npu's backward aborts where a second device was used."""
    passes(
        """
        import torch
        layer, plain = torch.nn.Linear(8, 4).npu(), torch.nn.Linear(8, 4).npu()
        plain.load_state_dict(layer.state_dict())
        sample = torch.randn(2, 8, device="npu", requires_grad=True)
        graphed = torch.npu.make_graphed_callables(layer, (sample,))
        for _ in range(3):
            x = torch.randn(2, 8).npu().requires_grad_()
            x2 = x.detach().clone().requires_grad_()
            for module in (layer, plain):
                module.zero_grad(set_to_none=True)
            y, y2 = graphed(x), plain(x2)
            torch.testing.assert_close(y.cpu(), y2.cpu())
            y.square().sum().backward()
            y2.square().sum().backward()
            torch.testing.assert_close(x.grad.cpu(), x2.grad.cpu())
            torch.testing.assert_close(layer.weight.grad.cpu(), plain.weight.grad.cpu())
        """
    )


def test_host_functions_run_at_each_replay_in_stream_order() -> None:
    seen: list[float] = []
    x = torch.zeros(1, device="npu")
    result = torch.zeros(1).pin_memory()
    with capture() as graph:
        stream = torch.npu.current_stream()
        torch.npu._subscribe_report(stream)
        x += 1
        result.copy_(x, non_blocking=True)
        torch.npu._launch_host_func(stream, lambda _: seen.append(result.item()), None)
    for _ in range(3):
        graph.replay()
        torch.npu.synchronize()
    torch.npu._unsubscribe_report(stream)
    assert seen == [1.0, 2.0, 3.0]
