# SPDX-License-Identifier: Apache-2.0
"""From raw/ to summary.json: outputs compared, ratios with intervals, an exact test, a verdict.

A pure function of protocol and raw data, the same bytes in, the same numbers out. Starts nothing
and writes nothing. The statistics are numpy's and scipy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence.protocol import (
    Metric,
    Protocol,
    Statistic,
    smallest_p,
)

METRICS: tuple[Metric, ...] = ("tpot", "ttft", "e2el")
STATISTICS: tuple[Statistic, ...] = ("mean", "p50", "p95", "p99")
_PERCENTILES = (50, 95, 99)
_CONFIDENCE = 0.95
# Digits that all platforms agree on.
_DIGITS = 9

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Candidate over baseline, of one statistic of one metric.

    ratio: geometric mean over the pairs; low, high: its 95 % interval; p: exact, two-sided;
    pairs: the ratio of each pair.
    """

    ratio: float
    low: float
    high: float
    p: float
    pairs: tuple[float, ...]


@dataclass(frozen=True)
class Verdict:
    """One of protocol.VERDICTS, or VOID, and the reason in words."""

    verdict: str
    reason: str


def missing(protocol: Protocol, folder: Path) -> list[str]:
    """What the protocol wants under raw/ and is not there, and what there is that it does not."""
    raw = folder / "raw"
    wanted: dict[str, tuple[str, ...]]
    wanted = {start.folder: (*files.START_FILES, "start.json") for start in protocol.schedule()}
    if protocol.mechanism is not None:
        wanted |= {f"mechanism-{v.name}": ("steps.json", "log.txt") for v in protocol.variants}
    problems = [
        f"raw/{name}/{file} is missing"
        for name, inside in wanted.items()
        for file in inside
        if not (raw / name / file).is_file()
    ]
    there = {path.name for path in raw.iterdir()} if raw.is_dir() else set()
    problems += [f"raw/{name} is not in the protocol" for name in sorted(there - set(wanted))]
    return problems


def void_reasons(protocol: Protocol, outputs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Why nothing can be said: failed requests, wrong lengths, or outputs that differ.

    `outputs`: start folder -> its requests. All starts must agree, of one variant and of both.
    """
    reasons = []
    first_name, first = next(iter(outputs.items()))
    for name, lines in outputs.items():
        if [line["id"] for line in lines] != list(range(protocol.workload.requests)):
            reasons.append(f"{name}: not the {protocol.workload.requests} requests of the protocol")
            continue
        failed = [line["id"] for line in lines if line["error"]]
        if failed:
            reasons.append(f"{name}: requests {failed} failed")
        if protocol.workload.ignore_eos:
            wanted = protocol.workload.output_tokens
            other = [line["id"] for line in lines if line["output_tokens"] != wanted]
            if other:
                reasons.append(f"{name}: requests {other} have not {wanted} output tokens")
        if not all(line["output_chars"] for line in lines):
            reasons.append(f"{name}: outputs without text, which cannot be compared")
        differing = [
            line["id"]
            for line, other in zip(lines, first, strict=False)
            if (line["output_sha256"], line["input_tokens"], line["output_tokens"])
            != (other["output_sha256"], other["input_tokens"], other["output_tokens"])
        ]
        if differing:
            reasons.append(f"{name}: requests {differing} have other outputs than {first_name}")
    return reasons


def per_request(lines: list[dict[str, Any]]) -> dict[Metric, Array]:
    """Milliseconds, one per request: to the first token, per token after it, to the last."""
    arrival = np.array([line["arrival_us"] for line in lines], dtype=np.float64)
    first = np.array([line["chunk_us"][0] for line in lines], dtype=np.float64)
    last = np.array([line["chunk_us"][-1] for line in lines], dtype=np.float64)
    after_first = np.array([line["output_tokens"] - 1 for line in lines], dtype=np.float64)
    return {
        "tpot": (last - first) / after_first / 1e3,
        "ttft": (first - arrival) / 1e3,
        "e2el": (last - arrival) / 1e3,
    }


def statistics(values: Array) -> Array:
    """Mean, P50, P95, P99 over the last axis, as a new first axis: [4, ...]."""
    return np.concatenate(
        [values.mean(-1)[None], np.percentile(values, _PERCENTILES, axis=-1)], axis=0
    )


def log_ratios(candidate: Array, baseline: Array) -> Array:
    """[..., pairs, requests] each -> [4, ..., pairs]: log of candidate over baseline."""
    ratios: Array = np.log(statistics(candidate)) - np.log(statistics(baseline))
    return ratios


def cluster_bootstrap(
    candidate: Array, baseline: Array, *, resamples: int, seed: int
) -> tuple[Array, Array]:
    """95 % percentile intervals of the mean log ratio: low [4] and high [4].

    candidate, baseline: [pairs, requests]. Pairs of starts are resampled, then requests within
    each drawn pair. A request is the same prompt on both sides, so that both take the same ones.
    With few pairs such intervals are too narrow; the exact test stands beside them for that.
    """
    pairs, requests = candidate.shape
    generator = np.random.default_rng(seed)
    drawn = []
    for begin in range(0, resamples, 500):
        count = min(500, resamples - begin)
        start = generator.integers(pairs, size=(count, pairs, 1))
        request = generator.integers(requests, size=(count, pairs, requests))
        drawn.append(log_ratios(candidate[start, request], baseline[start, request]).mean(-1))
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(np.concatenate(drawn, axis=1), (tail, 100 - tail), axis=1)
    return low, high


def sign_flip_p(differences: Array) -> float:
    """Exact two-sided p of the mean of `differences` [pairs] under flips of their signs."""
    result = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
        alternative="two-sided",
    )
    return float(result.pvalue)


def compare(protocol: Protocol, candidate: Array, baseline: Array) -> dict[Statistic, Comparison]:
    """All statistics of one metric; candidate and baseline: [pairs, requests]."""
    logs = log_ratios(candidate, baseline)
    low, high = cluster_bootstrap(
        candidate,
        baseline,
        resamples=protocol.bootstrap.resamples,
        seed=protocol.bootstrap.seed,
    )
    return {
        name: Comparison(
            ratio=float(np.exp(logs[i].mean())),
            low=float(np.exp(low[i])),
            high=float(np.exp(high[i])),
            p=sign_flip_p(logs[i]),
            pairs=tuple(float(x) for x in np.exp(logs[i])),
        )
        for i, name in enumerate(STATISTICS)
    }


def decide(
    protocol: Protocol,
    compared: dict[Metric, dict[Statistic, Comparison]],
    mechanism_problems: list[str],
) -> Verdict:
    """The protocol's rule, in this order.

    CONFIRMED: the primary interval is below 1, p is at most max_p, each guard's interval is below
    its margin, and the mechanism was counted as expected. NOT_REPRODUCED: a guard's interval is
    beyond its margin, or the primary interval leaves no room for the minimum detectable effect.
    INCONCLUSIVE: all else.
    """
    primary = compared[protocol.primary.metric][protocol.primary.statistic]
    what = f"{protocol.primary.statistic} {protocol.primary.metric}"
    measured = (
        f"{what} is {primary.ratio:.4f} of the baseline's "
        f"[{primary.low:.4f}, {primary.high:.4f}], p = {primary.p:.4g}"
    )
    broken, open_guards = [], []
    for guard in protocol.guards:
        seen, limit = compared[guard.metric][guard.statistic], 1 + guard.margin
        name = f"{guard.statistic} {guard.metric} [{seen.low:.4f}, {seen.high:.4f}]"
        if seen.low > limit:
            broken.append(f"{name} is beyond {limit:.4g}")
        elif seen.high > limit:
            open_guards.append(f"{name} may be beyond {limit:.4g}")
    if broken:
        return Verdict("NOT_REPRODUCED", f"{measured}; guard: {'; '.join(broken)}")
    doubts = [
        *(["the interval reaches 1"] if primary.high >= 1 else []),
        *([f"p is above {protocol.max_p:g}"] if primary.p > protocol.max_p else []),
        *(f"guard: {text}" for text in open_guards),
        *(f"mechanism: {text}" for text in mechanism_problems),
    ]
    if not doubts:
        return Verdict("CONFIRMED", measured)
    floor = 1 - protocol.minimum_detectable_effect
    if primary.low > floor and primary.high >= 1:
        return Verdict(
            "NOT_REPRODUCED", f"{measured}; an effect down to {floor:g} would have been seen"
        )
    return Verdict("INCONCLUSIVE", f"{measured}; {'; '.join(doubts)}")


def mechanism(protocol: Protocol, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Counts per step of both variants, row by row, and how they differ from what is expected."""
    if protocol.mechanism is None:
        return [], []
    sides = {
        v.name: files.read_json(folder / "raw" / f"mechanism-{v.name}" / "steps.json")
        for v in protocol.variants
    }
    rows, problems = [], []
    for candidate, baseline in zip(
        sides[protocol.candidate], sides[protocol.baseline], strict=True
    ):
        # Times are of a single uncontrolled run: this part only counts.
        row = {k: v for k, v in candidate.items() if k not in ("per_step", "host_us")}
        row[protocol.candidate], row[protocol.baseline] = (
            candidate["per_step"],
            baseline["per_step"],
        )
        rows.append(row)
        for name, expected in protocol.mechanism.expected.items():
            seen = candidate["per_step"][name] - baseline["per_step"][name]
            if abs(seen - expected.difference) > expected.tolerance:
                problems.append(
                    f"{name} per step differs by {seen:+.4g}, not {expected.difference:+.4g}"
                )
    return rows, problems


def _copies(counted: dict[str, Any], direction: str) -> int:
    modes = counted["copies"][direction].values()
    return sum(kind["count"] for mode in modes for kind in mode.values())


def _server_counts(start: Path, steps: int) -> dict[str, float]:
    """Of the first device, per engine step, over the server's whole life, start-up included.

    Empty where the server left no counters: it was killed, or the device is not emulated.
    """
    path = start / "counters-0.json"
    if not path.is_file() or not steps:
        return {}
    total = files.read_json(path)["total"]
    return {
        "h2d": _copies(total, "h2d") / steps,
        "d2h": _copies(total, "d2h") / steps,
        "host_waits": total["host_wait_count"] / steps,
        "launches": total["launch_count"] / steps,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def amendments(folder: Path) -> list[dict[str, Any]]:
    """Lines of amendments.jsonl; none where there is no such file."""
    path = folder / "amendments.jsonl"
    return files.read_jsonl(path) if path.is_file() else []


def summarize(protocol: Protocol, folder: Path) -> dict[str, Any]:
    """What summary.json says. Raises CliError where raw/ is not complete."""
    if problems := missing(protocol, folder):
        raise CliError(
            f"{folder.name} is not complete: nothing can be said.",
            why="\n       ".join(problems),
            do="`evidence run` again: it goes on where it stopped.",
        )
    schedule = protocol.schedule()
    places = {s.folder: folder / "raw" / s.folder for s in schedule}
    lines = {name: files.read_jsonl(at / "requests.jsonl") for name, at in places.items()}
    records = {name: files.read_json(at / "start.json") for name, at in places.items()}
    rows, mechanism_problems = mechanism(protocol, folder)
    excluded = folder / "excluded"
    summary: dict[str, Any] = {
        "id": protocol.id,
        "claim": protocol.claim,
        "baseline": protocol.baseline,
        "candidate": protocol.candidate,
        "protocol_sha256": files.sha256(folder / "protocol.json"),
        "device_emulated": protocol.device.emulated,
        "amendments_after_data": sum(bool(a["seen_data"]) for a in amendments(folder)),
        "excluded_starts": sorted(p.name for p in excluded.iterdir()) if excluded.is_dir() else [],
        "smallest_attainable_p": smallest_p(protocol.starts_per_variant),
        "mechanism": {"per_step": rows, "problems": mechanism_problems},
    }
    if reasons := void_reasons(protocol, lines):
        return _rounded({**summary, "verdict": "VOID", "reason": "; ".join(reasons)})
    values = {name: per_request(requests) for name, requests in lines.items()}
    sides = {
        variant.name: [s.folder for s in schedule if s.variant == variant.name]
        for variant in protocol.variants
    }
    compared = {
        metric: compare(
            protocol,
            np.stack([values[name][metric] for name in sides[protocol.candidate]]),
            np.stack([values[name][metric] for name in sides[protocol.baseline]]),
        )
        for metric in METRICS
    }
    verdict = decide(protocol, compared, mechanism_problems)
    return _rounded(
        {
            **summary,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "decision": protocol.decisions[verdict.verdict],
            "candidate_over_baseline": {
                metric: {name: vars(seen) for name, seen in by_statistic.items()}
                for metric, by_statistic in compared.items()
            },
            "starts": [
                {
                    "start": s.folder,
                    "load_before": records[s.folder]["load_before"][0],
                    "other_programs_cpu_s": records[s.folder]["cpu_s"]["other_programs"],
                    "engine_steps": records[s.folder]["engine_steps"],
                    "per_engine_step": _server_counts(
                        places[s.folder], records[s.folder]["engine_steps"]
                    ),
                    **{
                        f"{metric}_ms": dict(
                            zip(
                                STATISTICS,
                                map(float, statistics(values[s.folder][metric])),
                                strict=True,
                            )
                        )
                        for metric in METRICS
                    },
                }
                for s in schedule
            ],
        }
    )
