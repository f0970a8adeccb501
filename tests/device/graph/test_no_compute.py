# SPDX-License-Identifier: Apache-2.0
"""ASCEND_EMU_COMPUTE=0 leaves the arithmetic out and keeps everything else, for host time."""

from __future__ import annotations

import pytest

from tests.helpers.emulated import passes

pytestmark = pytest.mark.timeout(120, method="thread")  # a hang is in C


def test_operators_do_nothing_copies_with_the_host_do() -> None:
    passes(
        """
        import torch
        from tests.helpers.emulated import counters, reset_counters
        x = torch.arange(4.0).npu()
        assert x.cpu().tolist() == [0, 1, 2, 3]
        pinned = torch.tensor([4.0, 5, 6, 7]).pin_memory()
        y = x.clone()
        reset_counters()
        y.copy_(pinned, non_blocking=True)
        y += 1
        z = torch.matmul(torch.ones(2, 2, device="npu"), torch.ones(2, 2, device="npu"))
        y.copy_(x)
        torch.npu.synchronize()
        assert y.cpu().tolist() == [4, 5, 6, 7]
        assert counters()["total"]["launches"]["aclnnMatmul"] == 1
        # The host reads this shape.
        mask = torch.tensor([True, False, True]).npu()
        assert mask.nonzero().shape == (2, 1)
        """,
        ASCEND_EMU_COMPUTE="0",
    )


def test_graphs_events_streams_and_callbacks_work() -> None:
    passes(
        """
        import torch
        from tests.device.graph.test_task_groups import Attention, lengths_of
        attention, graph, update = Attention(), torch.npu.NPUGraph(), torch.npu.Stream()
        attention.capture(graph)
        torch.npu.synchronize()
        compute = torch.npu.current_stream()
        for step in range(20):
            update.wait_stream(compute)
            graph.replay()
            if step % 5 == 0:
                assert not compute.query()
            attention.update(update, lengths_of(step))
        compute.synchronize()
        start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
        start.record()
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 0
        """,
        ASCEND_EMU_COMPUTE="0",
    )


def test_time_is_not_spent_computing() -> None:
    passes(
        """
        import time, torch
        a = torch.ones(1500, 1500, device="npu")
        start = time.perf_counter()
        for _ in range(200):
            b = a @ a
        torch.npu.synchronize()
        assert time.perf_counter() - start < 3
        """,
        ASCEND_EMU_COMPUTE="0",
    )
