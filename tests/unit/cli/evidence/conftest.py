# SPDX-License-Identifier: Apache-2.0
"""Evidence folders with known answers, made without running anything.

Times are written, not measured, so that each test knows the ratio that it must find.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence import protocol as protocols
from vllm_ascend_mrv2.cli.evidence import summary

NAME = "2026-01-02-made-up"
REQUESTS, OUTPUT_TOKENS = 6, 5

PROTOCOL: dict[str, Any] = {
    "version": 1,
    "id": NAME,
    "date": "2026-01-02",
    "claim": "quick costs less than slow",
    "decisions": {"CONFIRMED": "keep", "NOT_REPRODUCED": "remove", "INCONCLUSIVE": "keep"},
    "prior_data": "none",
    "stack": {"click": {"version": "8", "sha256": "0"}},
    "device": {"emulated": True, "sha256": "0"},
    "model": {"name": "m", "origin": "made up", "sha256": "0"},
    "machine": {"cpu_model": "any", "cpus": 1},
    "quiet": {"load_below": 1000, "wait_at_most_s": 0},
    "affinity": {"server": [0], "client": [0]},
    "environment": {"allow": ["PATH"], "set": {}},
    "server": {"arguments": [], "start_timeout_s": 20, "stop_timeout_s": 10},
    "workload": {
        "client": "vllm-bench-serve",
        "dataset": "random",
        "seed": 0,
        "input_tokens": 3,
        "output_tokens": OUTPUT_TOKENS,
        "requests": REQUESTS,
        "warmups": 0,
        "concurrency": 2,
        "request_rate": 0,
        "temperature": 0,
        "ignore_eos": True,
        "timeout_s": 30,
    },
    "variants": [
        {"name": "quick", "environment": {}, "arguments": []},
        {"name": "slow", "environment": {}, "arguments": []},
    ],
    "baseline": "slow",
    "candidate": "quick",
    "starts_per_variant": 5,
    "order": "ABBA",
    "exclusion": ["interrupted", "server_start"],
    "max_excluded": 1,
    "primary": {"metric": "tpot", "statistic": "mean", "direction": "lower"},
    "guards": [{"metric": "ttft", "statistic": "p95", "margin": 0.1}],
    "minimum_detectable_effect": 0.05,
    "max_p": 0.0625,
    "bootstrap": {"resamples": 1000, "seed": 7},
    "stop": "after all starts",
    "mechanism": {
        "command": ["{python}", "count.py", "{out}"],
        "expected": {"d2h": {"difference": -1, "tolerance": 0.01}},
    },
}


@pytest.fixture
def protocol_json() -> dict[str, Any]:
    """A protocol that holds, to be changed by a test."""
    return copy.deepcopy(PROTOCOL)


def request_line(number: int, tpot_us: float, ttft_us: float, text: str = "") -> dict[str, Any]:
    """One request with evenly spaced tokens."""
    arrival = 1000 * number
    output = text or f"output {number}"
    return {
        "id": number,
        "arrival_us": arrival,
        "chunk_us": [round(arrival + ttft_us + i * tpot_us) for i in range(OUTPUT_TOKENS)],
        "input_tokens": 3,
        "output_tokens": OUTPUT_TOKENS,
        "output_chars": len(output),
        "output_sha256": hashlib.sha256(output.encode()).hexdigest(),
        "error": "",
    }


def write_start(
    folder: Path, start: protocols.Start, lines: list[dict[str, Any]], **files_: str
) -> None:
    """raw/<start> as the runner would have left it."""
    place = folder / "raw" / start.folder
    place.mkdir(parents=True)
    content = {"server.log": "s\n", "client.log": "c\n", "metrics.txt": "m 1\n", **files_}
    content["requests.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines)
    for name, text in content.items():
        (place / name).write_text(text)
    record = {
        "start": start.number,
        "variant": start.variant,
        "began_at": f"2026-01-02T10:{start.number:02d}:00+00:00",
        "ended_at": f"2026-01-02T10:{start.number:02d}:50+00:00",
        "load_before": [0.1, 0.1, 0.1],
        "cpu_s": {"server": 1.0, "client": 1.0, "other_programs": 0.0},
        "engine_steps": 0,
        "files": {name: files.sha256(place / name) for name in content},
    }
    files.write_json(place / "start.json", record)


@pytest.fixture
def make_folder(tmp_path: Path, protocol_json: dict[str, Any]) -> Callable[..., Path]:
    """Write a complete folder in which the candidate takes `effect` of the baseline's time."""

    def make(
        effect: float = 0.8, ttft_effect: float = 1.0, noise: float = 0.01, d2h: float = 1.0
    ) -> Path:
        folder = tmp_path / NAME
        folder.mkdir()
        files.write_json(folder / "protocol.json", protocol_json)
        protocol = protocols.read(folder)
        files.write_json(
            folder / "run.json",
            {
                "began_at": "2026-01-02T10:00:00+00:00",
                "resumed_at": [],
                "protocol_sha256": files.sha256(folder / "protocol.json"),
                "protocol_commit": "",
                "no_git_reason": "made by a test",
            },
        )
        generator = np.random.default_rng(3)
        for start in protocol.schedule():
            is_candidate = start.variant == protocol.candidate
            tpot = 1e5 * (effect if is_candidate else 1) * np.exp(generator.normal(0, noise))
            ttft = 1e6 * (ttft_effect if is_candidate else 1)
            lines = [request_line(n, tpot * (1 + n / 50), ttft) for n in range(REQUESTS)]
            write_start(folder, start, lines)
        if protocol.mechanism is not None:
            for variant in protocol.variants:
                place = folder / "raw" / f"mechanism-{variant.name}"
                place.mkdir()
                count = 1.0 + (d2h if variant.name == protocol.baseline else 0)
                row = {"batch": 1, "host_us": 5.0, "per_step": {"d2h": count}}
                files.write_json(place / "steps.json", [row])
                (place / "log.txt").write_text("counted\n")
        return folder

    return make


def close(folder: Path) -> dict[str, Any]:
    """Summary, README and sums, as `evidence summarize` and an author leave them."""
    made = summary.summarize(protocols.read(folder), folder)
    files.write_json(folder / "summary.json", made)
    (folder / "README.md").write_text(f"The verdict is {made['verdict']}.\n")
    files.write_sums(folder)
    return made
