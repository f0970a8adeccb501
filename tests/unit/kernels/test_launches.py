# SPDX-License-Identifier: Apache-2.0
"""How many operators a step's kernels launch: a bound for each, so that it cannot creep up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers.kernel_check import KernelCheck
from tests.helpers.launches import HostWaitError, Launches

R, T, VOCAB_SIZE, MAX_MODEL_LEN = 3, 16, 100, 32

pytestmark = pytest.mark.usefixtures("host_tables_on")


def count(step: Callable[[], Any]) -> int:
    step()  # makes the constants
    with Launches(waits=False) as launches:
        step()
    return len(launches.names)


@pytest.fixture
def state(check: KernelCheck) -> dict[str, torch.Tensor]:
    def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype).to(check.device)

    return {
        "rows": torch.tensor([2, 0, 4]).to(check.device),
        "starts": torch.arange(R + 1, dtype=torch.int32).to(check.device),
        "input_ids": ints(T),
        "positions": ints(T, dtype=torch.int64),
        "seq_lens": ints(8),
        "lengths": ints(8),
        "all_token_ids": ints(8, MAX_MODEL_LEN),
        "last_sampled": ints(8, 1, dtype=torch.int64),
        "sampled": ints(R, 1, dtype=torch.int64),
        "per_row": ints(R),
        "next_prefill": ints(1, 8),
    }


def test_a_decode_step(check: KernelCheck, state: dict[str, torch.Tensor]) -> None:
    from vllm.v1.worker.gpu import input_batch as core
    from vllm.v1.worker.gpu.block_table import BlockTables

    s = state
    tables = BlockTables([8], 8, T, [4], check.device)
    drafts = torch.zeros(8, 0, dtype=torch.int64).to(check.device)
    counts = {
        "prefill": count(
            lambda: core.prepare_prefill_inputs(
                s["input_ids"],
                s["next_prefill"],
                s["rows"],
                s["starts"],
                s["all_token_ids"],
                s["lengths"],
                s["lengths"],
            )
        ),
        "positions": count(
            lambda: core.prepare_pos_seq_lens(
                s["rows"], s["starts"], s["lengths"], s["positions"], s["seq_lens"]
            )
        ),
        "combine": count(
            lambda: core.combine_sampled_and_draft_tokens(
                s["input_ids"],
                s["rows"],
                s["last_sampled"],
                s["starts"],
                s["seq_lens"],
                s["lengths"],
                drafts,
                s["starts"],
                R,
            )
        ),
        "block tables": count(lambda: tables.gather_block_tables(s["rows"], R)),
        "slots": count(
            lambda: tables.compute_slot_mappings(s["rows"], s["starts"], s["positions"], R)
        ),
        "sampled": count(
            lambda: core.get_num_sampled_and_rejected(
                s["per_row"], s["seq_lens"], s["starts"], s["rows"], s["lengths"]
            )
        ),
        "post-update": count(
            lambda: core.post_update(
                s["rows"],
                s["lengths"],
                s["last_sampled"],
                None,
                s["sampled"],
                s["per_row"] * 0,
                s["per_row"] * 0,
                s["starts"],
                s["all_token_ids"],
                s["lengths"],
            )
        ),
    }
    bounds = {
        "prefill": 26, "positions": 10, "combine": 10, "block tables": 1, "slots": 13,
        "sampled": 7, "post-update": 23,
    }  # fmt: skip
    assert all(counts[name] <= bounds[name] for name in bounds), counts


def test_random_sampling_takes_about_fifty(check: KernelCheck) -> None:
    from vllm_ascend_mrv2.kernels.sample import gumbel

    logits = torch.randn(R, VOCAB_SIZE).to(check.device)
    states = torch.zeros(R, dtype=torch.int32).to(check.device)
    temperature, pos = torch.ones(R).to(check.device), torch.ones(R, dtype=torch.int64)
    pos = pos.to(check.device)
    launches = count(lambda: gumbel.sample_seeded(logits, states, temperature, pos, 50))
    assert launches <= 48


def test_greedy_sampling_takes_one(check: KernelCheck) -> None:
    from types import SimpleNamespace

    import numpy as np

    from vllm_ascend_mrv2.kernels.sample.sampler import Sampler

    sampler = SimpleNamespace(
        sampling_states=SimpleNamespace(temperature=SimpleNamespace(np=np.zeros(8, np.float32)))
    )
    logits = torch.randn(R, VOCAB_SIZE).to(check.device)
    nothing: Any = None
    arguments = (logits, nothing, np.asarray([2, 0, 4]), nothing, None, None, False)
    assert count(lambda: Sampler._sample_random(sampler, *arguments)) == 1


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.index_fill(0, torch.zeros(1, dtype=torch.int64, device=x.device), 1),
    ],
    ids=["item", "nonzero", "mask", "index_fill"],
)
def test_the_guard_of_these_tests_sees_waits(check: KernelCheck, wait: Callable[..., Any]) -> None:
    x = torch.ones(3).to(check.device)
    with pytest.raises(HostWaitError), Launches(waits=False):
        wait(x)
