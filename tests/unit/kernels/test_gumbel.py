# SPDX-License-Identifier: Apache-2.0
"""kernels/sample/gumbel.py and min_p.py: core's random stream, and core's tokens from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.kernel_check import KernelCheck
from vllm_ascend_mrv2.kernels.sample import gumbel

SAMPLE = "vllm.v1.worker.gpu.sample"
MAX_NUM_REQS = 9
int64s = st.integers(-(2**63), 2**63 - 1)


def logits_of(rng: np.random.Generator, rows: int, vocab_size: int) -> torch.Tensor:
    """[rows, vocab_size] float32, some of them filtered out (-inf)."""
    logits = rng.standard_normal((rows, vocab_size), dtype=np.float32) * 4
    logits[:, 1:][rng.random((rows, vocab_size - 1)) < 0.2] = -np.inf
    return torch.from_numpy(logits)


def temperatures_of(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.choice(np.float32([0, 0.3, 1, 1.7]), MAX_NUM_REQS))


@pytest.mark.parametrize("use_fp64", [False, True])
@given(
    rows=st.integers(1, 5),
    vocab_size=st.integers(2, 2500),
    case=st.integers(0, 2**32 - 1),
    seeds=st.lists(int64s, min_size=MAX_NUM_REQS, max_size=MAX_NUM_REQS),
    drafting=st.booleans(),
    scale=st.booleans(),
)
def test_sampled_tokens(
    check: KernelCheck,
    use_fp64: bool,
    rows: int,
    vocab_size: int,
    case: int,
    seeds: list[int],
    drafting: bool,
    scale: bool,
) -> None:
    rng = np.random.default_rng(case)
    check.same(
        f"{SAMPLE}.gumbel.gumbel_sample",
        logits_of(rng, rows, vocab_size),
        torch.from_numpy(rng.integers(-1, MAX_NUM_REQS, rows)),
        temperatures_of(rng),
        torch.tensor(seeds),
        torch.from_numpy(rng.integers(0, 2**20, rows)),
        scale,
        drafting,
        None,
        None,
        use_fp64,
    )


@given(case=st.integers(0, 2**32 - 1), seeds=st.lists(int64s, min_size=4, max_size=4))
def test_known_seed_states_give_the_same_tokens(
    check: KernelCheck, case: int, seeds: list[int]
) -> None:
    """The sampler's short way (seeds hashed on the host, positions by table) draws the same."""
    rng = np.random.default_rng(case)
    logits = logits_of(rng, 4, 1500)
    temperature = torch.from_numpy(rng.choice(np.float32([0, 1]), 4))
    positions = torch.from_numpy(rng.integers(0, 5000, 4))
    states = torch.cat([gumbel.seed_state(torch.tensor([seed])) for seed in seeds])
    short = gumbel.sample_seeded(
        *check.place((logits, states, temperature, positions)), max_pos=5000
    )
    wanted, _ = check.oracle.call(
        f"{SAMPLE}.gumbel.gumbel_sample",
        logits,
        torch.arange(4),
        temperature,
        torch.tensor(seeds),
        positions,
        False,
        False,
    )
    assert torch.equal(short.cpu(), wanted)


def test_pieces_give_the_same_tokens(check: KernelCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose noise would not fit is sampled in pieces; a row never depends on another."""
    rng = np.random.default_rng(7)
    rows = 5
    logits = logits_of(rng, rows, 1500)
    arguments = check.place(
        (
            logits,
            torch.from_numpy(rng.integers(-1, MAX_NUM_REQS, rows)),
            temperatures_of(rng),
            torch.from_numpy(rng.integers(0, 2**60, MAX_NUM_REQS)),
            torch.from_numpy(rng.integers(0, 5000, rows)),
        )
    )
    whole = gumbel.gumbel_sample(*arguments, True, False)
    for limit in (1, 2 * 1500, 5 * 1500 - 1):
        monkeypatch.setattr(gumbel, "_MAX_ELEMENTS", limit)
        assert torch.equal(gumbel.gumbel_sample(*arguments, True, False), whole)


def test_every_bit_of_the_stream(check: KernelCheck) -> None:
    assert gumbel.stream_is_exact(check.device)


def test_first_token_wins_a_tie(check: KernelCheck) -> None:
    logits = torch.zeros(2, 3000)
    logits[:, 1100] = logits[:, 2900] = 5.0
    tokens = check.same(
        f"{SAMPLE}.gumbel.gumbel_sample",
        logits,
        torch.arange(2),
        torch.zeros(2),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, dtype=torch.int64),
        False,
        False,
    )
    assert tokens.tolist() == [1100, 1100]


def test_a_lone_token_survives_the_largest_uniform(check: KernelCheck) -> None:
    """u can round to 1.0 in float32; its noise must stay finite, else a lone token would lose."""
    high, low = (torch.tensor([[65535]], dtype=torch.int32) for _ in range(2))
    exponential = gumbel._exponential32(*check.place((high, low)))
    assert exponential.cpu().item() == pytest.approx(-np.log(2.0**-24), rel=1e-6)


@given(rows=st.integers(1, 5), vocab_size=st.integers(1, 9000), case=st.integers(0, 2**32 - 1))
def test_temperature(check: KernelCheck, rows: int, vocab_size: int, case: int) -> None:
    rng = np.random.default_rng(case)
    logits = torch.from_numpy(rng.standard_normal((rows, vocab_size), dtype=np.float32))
    mapping = torch.from_numpy(rng.integers(0, MAX_NUM_REQS, rows))
    check.same(f"{SAMPLE}.gumbel.apply_temperature", logits, mapping, temperatures_of(rng))


@given(rows=st.integers(1, 5), vocab_size=st.integers(2, 2500), case=st.integers(0, 2**32 - 1))
def test_min_p(check: KernelCheck, rows: int, vocab_size: int, case: int) -> None:
    rng = np.random.default_rng(case)
    mapping = torch.from_numpy(rng.integers(0, MAX_NUM_REQS, rows))
    min_p = torch.from_numpy(rng.choice(np.float32([0, 0.02, 0.3, 1]), MAX_NUM_REQS))
    logits = logits_of(rng, rows, vocab_size)
    check.same(f"{SAMPLE}.min_p.apply_min_p", logits, mapping, min_p)
