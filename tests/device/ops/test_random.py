# SPDX-License-Identifier: Apache-2.0
"""Random numbers: repeatable from the seed, different from call to call, and of the right kind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from tests.device.ops.abi import Abi
from tests.device.ops.compare import FLOATS

N = 40_000
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "uniform": lambda: torch.rand(N, device="npu"),
    "normal": lambda: torch.randn(N, device="npu"),
    "exponential": lambda: torch.empty(N, device="npu").exponential_(),
    "integers": lambda: torch.randint(0, 1000, (N,), device="npu"),
    "random": lambda: torch.empty(N, dtype=torch.int32, device="npu").random_(),
    "bernoulli": lambda: torch.empty(N, device="npu").bernoulli_(0.3),
    "permutation": lambda: torch.randperm(N, device="npu"),
    "multinomial": lambda: torch.multinomial(torch.ones(N, device="npu"), 100),
    "replaced": lambda: torch.multinomial(torch.ones(N, device="npu"), 100, replacement=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_seed_decides_and_calls_differ(name: str) -> None:
    torch.npu.manual_seed(7)
    first, second = DRAWS[name]().cpu(), DRAWS[name]().cpu()
    torch.npu.manual_seed(7)
    again = DRAWS[name]().cpu()
    torch.npu.manual_seed(8)
    other = DRAWS[name]().cpu()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def moments(x: torch.Tensor) -> tuple[float, float]:
    wide = x.cpu().double()
    return float(wide.mean()), float(wide.var())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_distributions(dtype: torch.dtype) -> None:
    torch.npu.manual_seed(1)
    # Mean and variance, each with its standard error of about 1 / sqrt(N) = 0.005 times five.
    mean, variance = moments(torch.rand(N, device="npu", dtype=dtype))
    assert abs(mean - 0.5) < 0.01
    assert abs(variance - 1 / 12) < 0.01
    mean, variance = moments(torch.empty(N, device="npu", dtype=dtype).normal_(2, 3))
    assert abs(mean - 2) < 0.1
    assert abs(variance - 9) < 0.4
    mean, variance = moments(torch.empty(N, device="npu", dtype=dtype).exponential_(2.0))
    assert abs(mean - 0.5) < 0.03
    assert abs(variance - 0.25) < 0.03
    u = torch.empty(N, device="npu", dtype=dtype).uniform_(-1, 3)
    assert float(u.min()) >= -1
    assert float(u.max()) < 3
    e = torch.empty(N, device="npu", dtype=dtype).exponential_()
    assert bool(torch.isfinite(e).all())


def test_integers_cover_their_range() -> None:
    torch.npu.manual_seed(3)
    x = torch.randint(-3, 5, (N,), device="npu").cpu()
    assert sorted(x.unique().tolist()) == list(range(-3, 5))
    counts = torch.bincount(x + 3).double()
    assert float((counts / (N / 8) - 1).abs().max()) < 0.1
    assert sorted(torch.randperm(1000, device="npu").cpu().tolist()) == list(range(1000))


def test_neighbouring_values_are_not_correlated() -> None:
    torch.npu.manual_seed(4)
    x = torch.randn(N, device="npu").cpu().double()
    for lag in (1, 2, 3, 4, 5):
        assert abs(float((x[lag:] * x[:-lag]).mean())) < 0.03


def test_multinomial_follows_its_weights() -> None:
    torch.npu.manual_seed(5)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0])
    drawn = torch.multinomial(weights.npu(), N, replacement=True).cpu()
    share = torch.bincount(drawn, minlength=5) / N
    torch.testing.assert_close(share, weights / 10, rtol=0, atol=0.02)
    rows = torch.multinomial(weights.expand(500, 5).contiguous().npu(), 3).cpu()
    assert all(sorted(row) == [1, 2, 4] for row in rows.tolist())
    first = torch.bincount(rows[:, 0], minlength=5) / 500
    assert abs(float(first[4]) - 0.6) < 0.1


def test_the_form_for_graphs_reads_its_state_from_the_device(abi: Abi) -> None:
    """Inside a capture seed and offset are device tensors, so that each replay draws anew."""
    out = torch.empty(64, device="npu")
    seed, offset = torch.tensor([5]).npu(), torch.tensor([0]).npu()

    def draw(in_graph: int) -> torch.Tensor:
        abi.call(
            "aclnnInplaceUniformTensor", out, 0.0, 1.0, seed, offset, ctypes.c_uint64(in_graph)
        )
        return out.cpu()

    first = draw(0)
    assert torch.equal(first, draw(0))
    assert not torch.equal(first, draw(4))
    offset.fill_(4)
    assert not torch.equal(first, draw(0))
    offset.fill_(0)
    assert torch.equal(first, draw(0))
