# SPDX-License-Identifier: Apache-2.0
"""Task groups, updates and external events: what attention needs whose lengths are host values.

`Attention` is the plugin's use in small: a captured FIA call in a task group behind an external
event, updated for each replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch_npu

from tests.helpers.emulated import Gate, counters, passes, reset_counters, run_script

pytestmark = pytest.mark.timeout(150, method="thread")  # a hang is in C

BATCH, HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS_PER_ROW = 3, 4, 2, 16, 16, 4


class Attention:
    """Decode attention of BATCH rows over a paged KV cache, eager and captured."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).npu()

        num_blocks = BATCH * BLOCKS_PER_ROW
        self.query = random(BATCH, HEADS, HEAD_SIZE)
        self.key = random(num_blocks, BLOCK_SIZE, KV_HEADS * HEAD_SIZE)
        self.value = random(num_blocks, BLOCK_SIZE, KV_HEADS * HEAD_SIZE)
        table = torch.arange(num_blocks, dtype=torch.int32).view(BATCH, BLOCKS_PER_ROW)
        self.settings = {
            "block_table": table.npu(),
            "input_layout": "TND",
            "block_size": BLOCK_SIZE,
            "actual_seq_lengths": list(range(1, BATCH + 1)),
            "num_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "scale": HEAD_SIZE**-0.5,
            "sparse_mode": 0,
        }
        self.workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
            self.query, self.key, self.value, actual_seq_lengths_kv=[1] * BATCH, **self.settings
        )
        self.lse = torch.empty(1, device="npu")

    def run(self, lengths: Sequence[int], out: torch.Tensor) -> None:
        """`lengths`: tokens of each row in the KV cache."""
        torch_npu.npu_fused_infer_attention_score.out(
            self.query,
            self.key,
            self.value,
            actual_seq_lengths_kv=list(lengths),
            workspace=self.workspace,
            out=[out, self.lse],
            **self.settings,
        )

    def eager(self, lengths: Sequence[int]) -> torch.Tensor:
        out = torch.empty_like(self.query)
        self.run(lengths, out)
        return out.cpu()

    def capture(self, graph: torch.npu.NPUGraph) -> None:
        """In the middle of other work, so that the replay has something to do on either side."""
        self.event = torch.npu.ExternalEvent()
        self.out = torch.empty_like(self.query)
        with torch.npu.graph(graph):
            stream = torch.npu.current_stream()
            self.query.mul_(1.0)
            self.event.wait(stream)
            self.event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            self.run([1] * BATCH, self.out)
            self.group = torch.npu.graph_task_group_end(stream)
            self.result = self.out + 0

    def update(self, stream: torch.npu.Stream, lengths: Sequence[int]) -> None:
        with torch.npu.stream(stream):
            torch.npu.graph_task_update_begin(stream, self.group)
            self.run(lengths, self.out)
            torch.npu.graph_task_update_end(stream)
            self.event.record(stream)


def lengths_of(step: int) -> list[int]:
    return [1 + (step * (7 + 4 * row)) % (BLOCK_SIZE * BLOCKS_PER_ROW) for row in range(BATCH)]


@pytest.fixture
def attention() -> Attention:
    return Attention()


def test_fifty_updated_replays_equal_eager(attention: Attention) -> None:
    expected = [attention.eager(lengths_of(step)) for step in range(50)]
    assert not torch.equal(expected[0], expected[1])
    graph, update = torch.npu.NPUGraph(), torch.npu.Stream()
    attention.capture(graph)
    results = []
    for step in range(50):
        update.wait_stream(torch.npu.current_stream())  # the previous replay
        graph.replay()
        attention.update(update, lengths_of(step))
        results.append(attention.result.clone())  # results must leave graph memory
    for result, reference in zip(results, expected, strict=True):
        assert torch.equal(result.cpu(), reference)


def test_a_replay_waits_for_its_event_and_nothing_else_does(attention: Attention) -> None:
    graph, update = torch.npu.NPUGraph(), torch.npu.Stream()
    attention.capture(graph)
    torch.npu.synchronize()
    compute = torch.npu.current_stream()
    graph.replay()
    other = torch.npu.Stream()
    with torch.npu.stream(other):
        assert torch.ones(2, device="npu").add(1).cpu().tolist() == [2.0, 2.0]
    assert not compute.query()
    attention.update(update, lengths_of(3))
    compute.synchronize()
    assert torch.equal(attention.result.cpu(), attention.eager(lengths_of(3)))


def test_an_update_takes_effect_in_stream_order(attention: Attention) -> None:
    """Not when the host asks for it: a replay that runs before uses the old lengths."""
    graph, update = torch.npu.NPUGraph(), torch.npu.Stream()
    attention.capture(graph)
    attention.update(update, lengths_of(1))
    torch.npu.synchronize()
    with Gate() as gate:
        gate.close(update)
        attention.update(update, lengths_of(2))
        graph.replay()  # the event of the first update is still set
        torch.npu.current_stream().synchronize()
        assert torch.equal(attention.result.cpu(), attention.eager(lengths_of(1)))
        gate.open()
    graph.replay()
    torch.npu.current_stream().synchronize()
    assert torch.equal(attention.result.cpu(), attention.eager(lengths_of(2)))


def test_counters_tell_replayed_work_from_launches(attention: Attention) -> None:
    graph, update = torch.npu.NPUGraph(), torch.npu.Stream()
    attention.capture(graph)
    torch.npu.synchronize()
    reset_counters()
    for step in range(4):
        update.wait_stream(torch.npu.current_stream())
        graph.replay()
        attention.update(update, lengths_of(step))
    torch.npu.synchronize()
    total = counters()["total"]
    assert total["launches"] == {}
    assert total["graph_replays"] == 4
    assert total["task_updates"] == 4
    # torch_npu's ExternalEvent is a word of memory: written by record and reset, awaited by wait.
    assert total["value_writes"] == 4
    assert total["value_waits"] == 0  # those are in the graph:
    replayed = total["replayed"]
    assert replayed["value_wait"] == replayed["value_write"] == 4
    assert replayed["aclnnFusedInferAttentionScoreV3"] == 4
    assert total["replayed_count"] == 4 * 5
    graphs = counters()["graphs"]
    mine = max(graphs, key=lambda each: each["id"])
    assert mine["nodes"] == 5
    assert mine["task_groups"] == 1
    assert mine["replays"] == 4
    assert mine["updates"] == 4


def test_update_by_torch_npu_itself(attention: Attention) -> None:
    """NPUGraph.update() of a capture with auto_dispatch_capture."""
    graph = torch.npu.NPUGraph()
    out = torch.empty_like(attention.query)
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        attention.run([1] * BATCH, out)
    for step in (1, 2, 3):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths_of(step)}])
        graph.replay()
        torch.npu.synchronize()
        assert torch.equal(out.cpu(), attention.eager(lengths_of(step)))
    with pytest.raises(RuntimeError, match="need to be updated"):
        graph.update(cpu_update_input=[{}, {}])


def test_misuse_of_groups_and_updates(attention: Attention) -> None:
    """Refused with CANN's codes and a text, and the graph works on."""
    graph, update = torch.npu.NPUGraph(), torch.npu.Stream()
    with pytest.raises(RuntimeError, match="107029"):
        torch.npu.graph_task_group_begin(update)
    attention.capture(graph)
    attention.update(update, lengths_of(1))
    torch.npu.synchronize()

    torch.npu.graph_task_update_begin(update, attention.group)
    with pytest.raises(RuntimeError, match=r"(?s)507000.*has 1 tasks and the update 0"):
        torch.npu.graph_task_update_end(update)
    with pytest.raises(RuntimeError, match=r"(?s)107033.*no task update is open"):
        torch.npu.graph_task_update_end(update)
    torch.npu.graph_task_update_begin(update, attention.group)
    with pytest.raises(RuntimeError, match=r"(?s)107033.*already"):
        torch.npu.graph_task_update_begin(update, attention.group)
    with torch.npu.stream(update):
        attention.run(lengths_of(2), attention.out)
    torch.npu.graph_task_update_end(update)
    torch.npu.synchronize()  # the replay is on another stream
    graph.replay()
    torch.npu.synchronize()
    assert torch.equal(attention.result.cpu(), attention.eager(lengths_of(2)))

    graph.reset()
    with pytest.raises(RuntimeError, match="107017"):
        torch.npu.graph_task_update_begin(update, attention.group)


@pytest.mark.parametrize("task_queue", ["0", "1"])
def test_an_update_with_too_many_tasks_is_refused(task_queue: str) -> None:
    """With a task queue, torch_npu reports the operator's error at the next synchronisation."""
    result = run_script(
        """
        import torch
        from tests.device.graph.test_task_groups import Attention, lengths_of
        attention, graph, update = Attention(), torch.npu.NPUGraph(), torch.npu.Stream()
        attention.capture(graph)
        torch.npu.graph_task_update_begin(update, attention.group)
        with torch.npu.stream(update):
            attention.run(lengths_of(1), attention.out)
            attention.run(lengths_of(1), attention.out)
            torch.npu.synchronize()
        """,
        TASK_QUEUE_ENABLE=task_queue,
    )
    assert result.returncode == 1
    assert "error code is 507000" in result.stderr
    assert "V3 is one task more than the 1 of the task group" in result.stderr


SCRIPT = """
import torch
from tests.helpers.forked import outcome
from tests.device.graph.test_task_groups import Attention, lengths_of

STEPS = 12

def decode(update_streams=1):
    attention, graph = Attention(), torch.npu.NPUGraph()
    expected = [attention.eager(lengths_of(step)) for step in range(STEPS)]
    attention.capture(graph)
    torch.npu.synchronize()
    updates = [torch.npu.Stream() for _ in range(update_streams)]
    results = []
    for step in range(STEPS):
        update = updates[step % update_streams]
        update.wait_stream(torch.npu.current_stream())
        graph.replay()
        attention.update(update, lengths_of(step))
        results.append(attention.result.clone())
    wrong = sum(not torch.equal(r.cpu(), e) for r, e in zip(results, expected))
    if wrong:
        print("corrupt")
        raise SystemExit(f"{wrong} wrong results")
"""


def outcomes(calls: str, timeout_s: float = 100) -> list[str]:
    return passes(SCRIPT + calls, timeout_s).split()


def test_ordered_updates_are_right_under_every_schedule() -> None:
    """What becomes of updates that are not is in tests/device/hazards."""
    assert (
        outcomes(
            """
for seed in range(10):
    print(outcome(lambda: decode(), seed=seed))
print(outcome(lambda: decode(), seed=3, slow_us="3000"))
print(outcome(lambda: decode(update_streams=2), seed=4, slow_us="3000"))
"""
        )
        == ["done"] * 12
    )
