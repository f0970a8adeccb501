# SPDX-License-Identifier: Apache-2.0
"""Statistics with known answers, the correctness gate, and the verdict's rule."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.cli.evidence.conftest import OUTPUT_TOKENS, request_line
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence import protocol as protocols
from vllm_ascend_mrv2.cli.evidence import summary
from vllm_ascend_mrv2.cli.evidence.summary import Comparison

Make = Callable[..., Path]


def _summary(folder: Path) -> dict[str, Any]:
    return summary.summarize(protocols.read(folder), folder)


def test_per_request_times() -> None:
    values = summary.per_request([request_line(0, tpot_us=2000, ttft_us=7000)])
    assert values["tpot"].tolist() == [2.0]
    assert values["ttft"].tolist() == [7.0]
    assert values["e2el"].tolist() == [7.0 + 2.0 * (OUTPUT_TOKENS - 1)]


def test_joined_chunks_change_no_tpot() -> None:
    """vLLM sends several tokens in one chunk to a slow reader."""
    line = request_line(0, tpot_us=2000, ttft_us=7000)
    line["chunk_us"] = [line["chunk_us"][0], line["chunk_us"][-1]]
    assert summary.per_request([line])["tpot"].tolist() == [2.0]


def test_a_constant_ratio_has_an_interval_of_no_width() -> None:
    baseline = np.arange(1.0, 41.0).reshape(5, 8)
    low, high = summary.cluster_bootstrap(0.5 * baseline, baseline, resamples=1000, seed=0)
    assert np.exp(low) == pytest.approx([0.5] * 4)
    assert np.exp(high) == pytest.approx([0.5] * 4)


def test_the_interval_has_the_width_of_the_variance_between_starts() -> None:
    """No variance within starts: the mean's standard deviation is s / sqrt n."""
    generator = np.random.default_rng(1)
    logs = generator.normal(0, 0.1, 30)
    candidate = np.exp(np.repeat(logs[:, None], 10, axis=1))
    low, high = summary.cluster_bootstrap(candidate, np.ones((30, 10)), resamples=4000, seed=0)
    expected = 2 * 1.96 * logs.std() / np.sqrt(30)
    assert high - low == pytest.approx([expected] * 4, rel=0.08)


def test_the_interval_sees_variance_within_starts() -> None:
    generator = np.random.default_rng(1)
    candidate = np.exp(generator.normal(0, 0.1, (5, 50)))
    baseline = np.ones((5, 50))
    low, high = summary.cluster_bootstrap(candidate, baseline, resamples=2000, seed=0)
    # Starts of equal means would give none at all.
    assert high[0] - low[0] > 2 * 1.96 * 0.1 / np.sqrt(250) * 0.8


@pytest.mark.parametrize(
    "values", [[-1.0, -2.0, -3.0, -4.0, -5.0], [1.0, -2.0, 3.0, -1.5, 0.5], [0.1, 0.2, -0.4]]
)
def test_sign_flips_as_counted_by_hand(values: list[float]) -> None:
    flips = [
        sum(s * v for s, v in zip(signs, values, strict=True)) / len(values)
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    seen = sum(values) / len(values)
    at_least = sum(abs(f) >= abs(seen) - 1e-12 for f in flips) / len(flips)
    assert summary.sign_flip_p(np.array(values)) == pytest.approx(at_least)


def test_a_clear_effect_is_confirmed(make_folder: Make) -> None:
    made = _summary(make_folder(effect=0.8))
    assert made["verdict"] == "CONFIRMED"
    assert made["decision"] == "keep"
    seen = made["candidate_over_baseline"]["tpot"]["mean"]
    assert seen["ratio"] == pytest.approx(0.8, rel=0.02)
    assert seen["low"] < seen["ratio"] < seen["high"] < 0.85
    assert seen["p"] == made["smallest_attainable_p"] == 0.0625
    assert len(seen["pairs"]) == 5


def test_no_effect_is_not_reproduced(make_folder: Make) -> None:
    assert _summary(make_folder(effect=1.005))["verdict"] == "NOT_REPRODUCED"


def test_noise_is_inconclusive(make_folder: Make) -> None:
    assert _summary(make_folder(effect=0.95, noise=0.3))["verdict"] == "INCONCLUSIVE"


def test_a_broken_guard_is_not_reproduced(make_folder: Make) -> None:
    made = _summary(make_folder(effect=0.8, ttft_effect=1.5))
    assert made["verdict"] == "NOT_REPRODUCED"
    assert "p95 ttft" in made["reason"]


def test_another_mechanism_than_claimed_is_not_confirmed(make_folder: Make) -> None:
    made = _summary(make_folder(effect=0.8, d2h=0.0))
    assert made["verdict"] == "INCONCLUSIVE"
    assert "d2h per step differs by +0, not -1" in made["reason"]


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict"),
    [
        (0.80, 0.90, 0.0625, "CONFIRMED"),
        (0.97, 0.99, 0.0625, "CONFIRMED"),
        (0.80, 0.90, 0.125, "INCONCLUSIVE"),
        (0.80, 1.01, 0.0625, "INCONCLUSIVE"),
        (0.96, 1.01, 0.5, "NOT_REPRODUCED"),
        (1.02, 1.10, 0.0625, "NOT_REPRODUCED"),
    ],
)
def test_the_rule(
    protocol_json: dict[str, Any], low: float, high: float, p: float, verdict: str
) -> None:
    protocol_json["guards"] = []
    protocol = protocols.from_json(json.dumps(protocol_json))
    seen = Comparison((low + high) / 2, low, high, p, ())
    compared: Any = {"tpot": {"mean": seen}}
    assert summary.decide(protocol, compared, []).verdict == verdict


def _change(folder: Path, start: str, number: int, **values: Any) -> None:
    path = folder / "raw" / start / "requests.jsonl"
    lines = files.read_jsonl(path)
    lines[number].update(values)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output_sha256": "0" * 64}, "requests [2] have other outputs than 01-quick"),
        ({"error": "ConnectionResetError", "chunk_us": []}, "requests [2] failed"),
        ({"output_tokens": 4}, "requests [2] have not 5 output tokens"),
        ({"output_chars": 0}, "outputs without text"),
        ({"id": 9}, "not the 6 requests of the protocol"),
    ],
)
def test_wrong_outputs_void_the_run_however_fast_it_was(
    make_folder: Make, change: dict[str, Any], reason: str
) -> None:
    folder = make_folder(effect=0.5)
    _change(folder, "04-quick", 2, **change)
    made = _summary(folder)
    assert made["verdict"] == "VOID"
    assert f"04-quick: {reason}" in made["reason"]
    assert "candidate_over_baseline" not in made


def test_a_missing_start_gives_no_summary(make_folder: Make) -> None:
    folder = make_folder()
    for path in (folder / "raw" / "07-slow").iterdir():
        path.unlink()
    (folder / "raw" / "07-slow").rmdir()
    with pytest.raises(CliError, match="not complete") as caught:
        _summary(folder)
    assert "raw/07-slow/requests.jsonl is missing" in caught.value.why


def test_an_unfinished_start_is_never_taken_for_one(make_folder: Make) -> None:
    folder = make_folder()
    (folder / "raw" / "03-slow").rename(folder / "raw" / "03-slow.partial")
    with pytest.raises(CliError, match="not complete"):
        _summary(folder)
