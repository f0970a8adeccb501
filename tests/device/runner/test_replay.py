# SPDX-License-Identifier: Apache-2.0
"""The replay protocol: what it orders, what it refuses, and that updates are counted."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.emulated import Gate, counters, reset_counters
from vllm_ascend_mrv2.attention.fia import FiaCall, attend, compressed_causal_mask
from vllm_ascend_mrv2.graph.capture import CapturedGraph, capture
from vllm_ascend_mrv2.graph.replay import ReplayProtocol, ReplayState, WindowError
from vllm_ascend_mrv2.graph.tasks import TaskMismatchError

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


def captured_of(layers: Layers) -> tuple[CapturedGraph, torch.Tensor]:
    graph = CapturedGraph("test")
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with capture(graph, torch.npu.graph_pool_handle(), stream):
        out = layers.run([1, 1])
    torch.npu.current_stream().wait_stream(stream)
    return graph, out


def test_each_replay_uses_its_own_lengths(layers: Layers) -> None:
    graph, out = captured_of(layers)
    assert graph.num_tasks == LAYERS
    protocol = ReplayProtocol(torch.device("npu:0"))
    results = []
    for step in range(20):
        lens = [1 + step, 48 - step]
        protocol.replay(graph, [1, 2], lens)
        results.append((lens, out.clone()))
    for lens, result in results:
        torch.testing.assert_close(result, layers.run(lens), rtol=0, atol=0)


def test_a_replay_waits_for_nothing(layers: Layers) -> None:
    """Held behind a gate: submission and updates must all return before the device has begun."""
    graph, out = captured_of(layers)
    protocol = ReplayProtocol(torch.device("npu:0"))
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
    graph, _ = captured_of(layers)
    protocol = ReplayProtocol(torch.device("npu:0"))
    refused = []

    class Nosy:
        """Stands in for an update that reads the device."""

        def update(self, *args: object) -> None:
            with pytest.raises(WindowError, match="inside a replay window"):
                protocol.refuse_wait("a read of sequence lengths")
            refused.append(protocol.state)
            tasks.update(*args)

    tasks, graph.tasks = graph.tasks, Nosy()  # type: ignore[assignment]
    protocol.replay(graph, [1, 2], [3, 4])
    assert refused == [ReplayState.OPEN]
    assert protocol.state is ReplayState.IDLE
    protocol.refuse_wait("nothing: the window is closed")


def test_updates_must_be_those_that_were_captured(layers: Layers) -> None:
    graph, _ = captured_of(layers)
    reset_counters()
    stream = torch.npu.Stream()
    with pytest.raises(TaskMismatchError, match=r"waits for 4 .* and 3 are known"):
        graph.tasks.update(stream, [1, 2], [3, 4], captured=LAYERS + 1)
    assert counters()["total"]["task_updates"] == 0


def test_a_graph_that_nobody_armed_does_not_run(layers: Layers) -> None:
    graph, _ = captured_of(layers)
    with pytest.raises(RuntimeError, match="without this step's host lengths"):
        graph.replay()
