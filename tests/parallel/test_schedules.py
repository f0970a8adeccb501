# SPDX-License-Identifier: Apache-2.0
"""Two ranks with graphs, async scheduling and preemption, under many schedules of their streams.

The engine is in this process, its ranks are processes of their own; one engine serves all seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.in_process import engine
from tests.engine.test_graph_exactness import tokens
from tests.parallel.layouts import BY_NAME, IN_RANKS

pytestmark = pytest.mark.timeout(1800)
# Of the adversarial scheduler, each with the 28 requests of the mixed load: 20 seeds, 560 requests.
SEEDS = range(1, int(os.environ.get("SEEDS", "20")) + 1)


def test_every_schedule_gives_the_tokens_of_one_device(tiny: Callable[[str, str], Path]) -> None:
    checkpoint = tiny("qwen3", "float32")
    with engine(checkpoint, enforce_eager=True, async_scheduling=False) as one:
        expected = tokens(one)
    with engine(
        checkpoint,
        tensor_parallel_size=BY_NAME["tp2"].tensor,
        worker_extension_cls=IN_RANKS[1],
        disable_log_stats=False,
    ) as two:
        assert two.llm_engine.vllm_config.scheduler_config.async_scheduling
        assert tokens(two) == expected
        delays = two.collective_rpc("schedule_delays")
        assert delays == [0, 0]
        graphs = [steps for _, steps in two.collective_rpc("how_it_sampled")]
        for seed in SEEDS:
            two.collective_rpc("set_schedule_seed", args=(seed,))
            assert tokens(two) == expected, f"under scheduler seed {seed}"
            before, delays = delays, two.collective_rpc("schedule_delays")
            assert all(now > then for now, then in zip(delays, before, strict=True)), seed
            earlier, graphs = graphs, [n for _, n in two.collective_rpc("how_it_sampled")]
            assert all(n > m for n, m in zip(graphs, earlier, strict=True)), "no step was a graph"
        metrics = {metric.name: metric for metric in two.get_metrics()}
    assert metrics["vllm:num_preemptions"].value >= len(SEEDS)
