# SPDX-License-Identifier: Apache-2.0
"""Parts of a step, each by itself, timed by pytest-benchmark. `make bench` runs it; no time is
asserted.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from tests.unit.test_step_rule import STEADY
from vllm_ascend_mrv2.attention.plan import padded_decode_lens
from vllm_ascend_mrv2.graph.step_graphs import decide_step
from vllm_ascend_mrv2.kernels import buffer_utils
from vllm_ascend_mrv2.kernels.sample import gumbel
from vllm_ascend_mrv2.runner.seq_lens import SeqLensMirror
from vllm_ascend_mrv2.runner.staging import StagingRing

DEVICE = torch.device("npu:0")
BATCHES = (1, 8, 32)


@pytest.fixture
def ring() -> StagingRing:
    torch.npu.set_device(DEVICE)
    return StagingRing(DEVICE, 1 << 20, 3)


@pytest.mark.parametrize("kilobytes", [1, 64])
def test_staging_a_step(benchmark: BenchmarkFixture, ring: StagingRing, kilobytes: int) -> None:
    """Pack, copy on the input stream, order the compute stream after it."""
    data = np.zeros(kilobytes << 10, np.uint8)

    def step() -> None:
        ring.begin_step()
        ring.put(data)
        ring.flush()
        ring.end_step()

    benchmark(step)


def test_staging_nothing(benchmark: BenchmarkFixture, ring: StagingRing) -> None:
    def step() -> None:
        ring.begin_step()
        ring.flush()
        ring.end_step()

    benchmark(step)


@pytest.mark.parametrize("batch", BATCHES)
def test_an_unchanged_table(benchmark: BenchmarkFixture, batch: int) -> None:
    """What a sampler table costs in a step that did not change it."""
    pool = buffer_utils.MirrorPool(batch, torch.float32)
    table = np.ones(batch, np.float32)
    pool.copy_to_uva(table)
    benchmark(pool.copy_to_uva, table)


@pytest.mark.parametrize("batch", BATCHES)
def test_lengths_from_the_scheduler(benchmark: BenchmarkFixture, batch: int) -> None:
    mirror = SeqLensMirror(batch)
    rows = np.arange(batch)
    for row in range(batch):
        mirror.add(row, 0)
    one_each = np.ones(batch, np.int32)

    def step() -> None:
        mirror.follows(rows)
        mirror.advance(rows, one_each)

    benchmark(step)


@pytest.mark.parametrize("batch", BATCHES)
def test_lengths_for_a_replay(benchmark: BenchmarkFixture, batch: int) -> None:
    benchmark(padded_decode_lens, list(range(1, batch + 1)), 32)


def test_the_rule_of_a_step(benchmark: BenchmarkFixture) -> None:
    assert benchmark(decide_step, STEADY).sampling is not None


def test_the_seed_of_a_request(benchmark: BenchmarkFixture) -> None:
    seed = torch.tensor([12345], dtype=torch.int64)
    benchmark(gumbel.seed_state, seed)
