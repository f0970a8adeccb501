# SPDX-License-Identifier: Apache-2.0
"""The replay protocol: what it orders, what it refuses, and that updates are counted.

Every test runs with both ways of updating; the compiled one must be built.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.helpers.emulated import Gate, counters, passes, reset_counters
from vllm_ascend_mrv2.attention.fia import FiaCall, attend, compressed_causal_mask
from vllm_ascend_mrv2.graph.capture import CapturedGraph, capture
from vllm_ascend_mrv2.graph.replay import ReplayProtocol, ReplayState, WindowError
from vllm_ascend_mrv2.graph.tasks import TaskMismatchError
from vllm_ascend_mrv2.graph.updates import (
    HotPathUpdater,
    HotPathUpdates,
    PythonUpdates,
    UpdateError,
    Updates,
    decide_updates,
    verdict,
)

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS = 4, 2, 64, 16, 8
LAYERS, REQUESTS = 3, 2


class Layers:
    """Some attention layers over one paged cache, each fed by the one before."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        shape = (BLOCKS, BLOCK_SIZE, KV_HEADS * HEAD_SIZE)
        self.query = torch.randn(REQUESTS, HEADS, HEAD_SIZE).npu()
        self.caches = [(torch.randn(shape).npu(), torch.randn(shape).npu()) for _ in range(LAYERS)]
        self.table = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32).npu()
        compressed_causal_mask(self.query.device)

    def run(self, kv_lens: list[int]) -> torch.Tensor:
        hidden = self.query
        for keys, values in self.caches:
            call = FiaCall(
                query=hidden,
                key_cache=keys,
                value_cache=values,
                block_table=self.table,
                block_size=BLOCK_SIZE,
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                scale=0.125,
            )
            hidden = attend(call, [1, 2], kv_lens) + hidden
        return hidden


@pytest.fixture
def layers() -> Layers:
    return Layers()


def hot_path() -> HotPathUpdates:
    library = verdict().library
    assert library is not None, verdict().reason
    return HotPathUpdates(library)


@pytest.fixture(params=["python", "hotpath"])
def updates(request: pytest.FixtureRequest) -> Updates:
    return PythonUpdates() if request.param == "python" else hot_path()


@pytest.fixture
def protocol(updates: Updates) -> Iterator[ReplayProtocol]:
    protocol = ReplayProtocol(torch.device("npu:0"), updates)
    yield protocol
    protocol.close()


def captured_of(layers: Layers, updates: Updates) -> tuple[CapturedGraph, torch.Tensor]:
    graph = CapturedGraph("test", updates)
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with capture(graph, torch.npu.graph_pool_handle(), stream):
        out = layers.run([1, 1])
    torch.npu.current_stream().wait_stream(stream)
    return graph, out


def test_each_replay_uses_its_own_lengths(
    layers: Layers, updates: Updates, protocol: ReplayProtocol
) -> None:
    graph, out = captured_of(layers, updates)
    assert graph.num_tasks == LAYERS
    results = []
    for step in range(20):
        lens = [1 + step, 48 - step]
        protocol.replay(graph, [1, 2], lens)
        results.append((lens, out.clone()))
    for lens, result in results:
        torch.testing.assert_close(result, layers.run(lens), rtol=0, atol=0)


def test_a_replay_waits_for_nothing(
    layers: Layers, updates: Updates, protocol: ReplayProtocol
) -> None:
    """Held behind a gate: submission and updates must all return before the device has begun."""
    graph, out = captured_of(layers, updates)
    torch.npu.synchronize()
    with Gate() as gate:
        gate.close()
        reset_counters()
        protocol.replay(graph, [1, 2], [5, 6])
        kept = out.clone()
        protocol.replay(graph, [1, 2], [7, 8])
        assert counters()["total"]["host_wait_count"] == 0
        gate.open()
    torch.testing.assert_close(kept, layers.run([5, 6]), rtol=0, atol=0)
    torch.testing.assert_close(out, layers.run([7, 8]), rtol=0, atol=0)


def test_a_wait_inside_the_window_is_refused(layers: Layers) -> None:
    updates = PythonUpdates()
    graph, _ = captured_of(layers, updates)
    protocol = ReplayProtocol(torch.device("npu:0"), updates)
    refused = []

    class Nosy:
        """Stands in for an update that reads the device."""

        def update(self, *args: object) -> None:
            with pytest.raises(WindowError, match="inside a replay window"):
                protocol.refuse_wait("a read of sequence lengths")
            refused.append(protocol.state)
            tasks.update(*args)

        def require(self, captured: int) -> None:
            tasks.require(captured)

    tasks, graph.tasks = graph.tasks, Nosy()  # type: ignore[assignment]
    protocol.replay(graph, [1, 2], [3, 4])
    assert refused == [ReplayState.OPEN]
    assert protocol.state is ReplayState.IDLE
    protocol.refuse_wait("nothing: the window is closed")


def test_the_window_is_open_while_the_updater_is_behind(layers: Layers) -> None:
    updates = hot_path()
    graph, out = captured_of(layers, updates)
    protocol = ReplayProtocol(torch.device("npu:0"), updates)
    assert isinstance(protocol.updater, HotPathUpdater)
    protocol.updater.thread.hold(True)
    protocol.replay(graph, [1, 2], [3, 4])
    first = out.clone()
    protocol.replay(graph, [1, 2], [5, 6])
    assert protocol.state is ReplayState.OPEN
    with pytest.raises(WindowError, match="inside a replay window"):
        protocol.refuse_wait("a read of sequence lengths")
    assert "2 replays are outstanding" in protocol.report()
    protocol.updater.thread.hold(False)
    protocol.close_window("a read of sequence lengths")
    assert protocol.state is ReplayState.IDLE
    assert f"all {LAYERS} attention updates issued" in protocol.report()
    torch.testing.assert_close(first, layers.run([3, 4]), rtol=0, atol=0)
    torch.testing.assert_close(out, layers.run([5, 6]), rtol=0, atol=0)
    protocol.close()
    with pytest.raises(UpdateError, match="was shut down"):
        protocol.replay(graph, [1, 2], [3, 4])


def test_updates_must_be_those_that_were_captured(
    layers: Layers, updates: Updates, protocol: ReplayProtocol
) -> None:
    """Found before the replay is submitted: afterwards the device would wait for good."""
    graph, _ = captured_of(layers, updates)
    reset_counters()
    graph.num_tasks += 1
    with pytest.raises(TaskMismatchError, match=r"waits for 4 .* and 3 are known"):
        protocol.replay(graph, [1, 2], [3, 4])
    assert counters()["total"]["task_updates"] == 0
    assert counters()["total"]["graph_replays"] == 0
    assert protocol.state is ReplayState.IDLE


def test_every_replay_updates_every_task(
    layers: Layers, updates: Updates, protocol: ReplayProtocol
) -> None:
    graph, _ = captured_of(layers, updates)
    reset_counters()
    for step in range(5):
        protocol.replay(graph, [1, 2], [1 + step, 2])
    protocol.close_window("the count of updates")
    total = counters()["total"]
    assert total["task_updates"] == 5 * LAYERS
    assert total["graph_replays"] == 5
    assert total["host_wait_count"] == 0


def test_a_graph_that_nobody_armed_does_not_run(
    layers: Layers, updates: Updates, protocol: ReplayProtocol
) -> None:
    graph, _ = captured_of(layers, updates)
    with pytest.raises(RuntimeError, match="without this step's host lengths"):
        graph.replay()


FAILING_UPDATE = """
import torch
from tests.device.runner.test_replay import Layers, captured_of, hot_path
from vllm_ascend_mrv2.graph.replay import ReplayProtocol, ReplayState
from vllm_ascend_mrv2.graph.updates import PythonUpdates, UpdateError
from vllm_ascend_mrv2.graph.watchdog import Watchdog
updates = {updates}
graph, out = captured_of(Layers(), updates)
protocol = ReplayProtocol(torch.device("npu:0"), updates)
protocol.replay(graph, [1, 2], [3, 4])
torch.npu.synchronize()
try:
    protocol.replay(graph, [1, 2], [3, 4000])  # past the block table: the operator refuses
    event = torch.npu.Event()
    event.record()
    Watchdog(protocol, 60, rank=0).wait(event)
except UpdateError as error:
    print("UpdateError:", error)
assert protocol.state is ReplayState.BROKEN
try:
    protocol.replay(graph, [1, 2], [3, 4])
except UpdateError:
    print("refused")
torch.npu.synchronize()  # the replay was let go: the process can end
protocol.close()
"""


@pytest.mark.parametrize("updates", ["PythonUpdates()", "hot_path()"])
def test_a_failed_update_breaks_the_protocol(updates: str) -> None:
    out = passes(FAILING_UPDATE.format(updates=updates), timeout_s=60)
    assert "UpdateError" in out
    assert "refused" in out


WITHHELD = """
import time, torch
from tests.device.runner.test_replay import Layers, captured_of, hot_path
from vllm_ascend_mrv2.graph.replay import ReplayProtocol
from vllm_ascend_mrv2.graph.watchdog import ReplayTimeoutError, Watchdog
updates = hot_path()
graph, out = captured_of(Layers(), updates)
protocol = ReplayProtocol(torch.device("npu:0"), updates)
protocol.updater.thread.hold(True)
protocol.replay(graph, [1, 2], [3, 4])
event = torch.npu.Event()
event.record()
begin = time.monotonic()
try:
    Watchdog(protocol, 0.5, rank=3).wait(event)
except ReplayTimeoutError as error:
    print(error)
assert 0.5 <= time.monotonic() - begin < 5
protocol.close()
torch.npu.synchronize()
print("closed", flush=True)
"""


def test_a_replay_that_does_not_end_is_reported() -> None:
    out = passes(WITHHELD, timeout_s=60)
    assert "rank 3: a step did not end within 0.5 s" in out
    assert "replay 1 of this worker, test: 0 of 3 attention updates issued" in out
    assert "layer 0 waits for its update and its event is not recorded" in out
    assert "closed" in out


FORKED = """
import os, torch
from tests.device.runner.test_replay import hot_path
from vllm_ascend_mrv2.graph.replay import ReplayProtocol
from vllm_ascend_mrv2.graph.updates import UpdateError
protocol = ReplayProtocol(torch.device("npu:0"), hot_path())
child = os.fork()
if child == 0:
    try:
        protocol.check()
    except UpdateError as error:
        os._exit(7 if "start workers by spawn" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("parent goes on", protocol.state.name)
"""


def test_the_updater_does_not_exist_in_a_fork() -> None:
    """And a process that never closes its updater ends all the same."""
    assert "parent goes on IDLE" in passes(FORKED, timeout_s=60)


def test_results_do_not_depend_on_the_schedule(updates: Updates) -> None:
    """The device's streams in another order and slow: updates still meet their own replay."""
    kind = "PythonUpdates()" if isinstance(updates, PythonUpdates) else "hot_path()"
    script = f"""
    import torch
    from tests.device.runner.test_replay import Layers, captured_of, hot_path
    from vllm_ascend_mrv2.graph.replay import ReplayProtocol
    from vllm_ascend_mrv2.graph.updates import PythonUpdates
    from tests.helpers.emulated import acl
    updates, layers = {kind}, Layers()
    graph, out = captured_of(layers, updates)
    protocol = ReplayProtocol(torch.device("npu:0"), updates)
    for seed in range(4):
        acl().emu_set_schedule_seed(seed, 1)
        results = []
        for step in range(12):
            lens = [1 + step, 48 - step]
            protocol.replay(graph, [1, 2], lens)
            results.append((lens, out.clone()))
        for lens, result in results:
            torch.testing.assert_close(result, layers.run(lens), rtol=0, atol=0)
    protocol.close()
    """
    passes(script, timeout_s=120, ASCEND_EMU_SLOW_US="200")


@pytest.mark.parametrize(
    ("switch", "built", "library", "reason"),
    [
        ("auto", "lib.so", "lib.so", "off the step thread"),
        ("auto", None, None, "not built; build it with `vllm-ascend-mrv2 hotpath build`"),
        ("off", "lib.so", None, "VLLM_ASCEND_MRV2_HOTPATH=off"),
    ],
)
def test_the_choice_has_a_reason(
    switch: str, built: str | None, library: str | None, reason: str
) -> None:
    chosen = decide_updates(switch, built, "not built")
    assert chosen.library == library
    assert reason in chosen.reason
