# SPDX-License-Identifier: Apache-2.0
"""The order checker finds each published failure in its first form, and nothing in its mended one.

`make hazards SEEDS=100` runs each form under that many seeds of the adversarial scheduler; without
it a few are tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.device.hazards import programs

ROOT = Path(__file__).resolve().parents[3]
SEEDS = int(os.environ.get("SEEDS", "3"))
TIMEOUT_S = 60 + 10 * SEEDS
pytestmark = [pytest.mark.timeout(2 * TIMEOUT_S), pytest.mark.xdist_group("hazards")]


@cache
def lines_to_change() -> list[str]:
    """`programs.py:LINE in` for each marked line, as a stack shows them."""
    text = Path(programs.__file__).read_text().splitlines()
    return [f"programs.py:{n} in" for n, line in enumerate(text, 1) if "# change:" in line]


@cache
def runs_of(form: str, names: tuple[str, ...], register_us: int) -> dict[str, list[dict[str, Any]]]:
    """What was found in SEEDS runs of one form of each, in one process: torch takes long to load.

    register_us: how long the first launch of a kernel takes; 0 where that is not what is looked at.
    """
    environment = {
        **os.environ,
        "ASCEND_EMU_CHECK": "report",
        "ASCEND_EMU_CHECK_DEPTH": "4",
        "ASCEND_EMU_CHECK_STALL_MS": "300",
        "ASCEND_EMU_CHECK_REGISTER_US": str(register_us),
        "TASK_QUEUE_ENABLE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.device.hazards.harness", form, str(SEEDS), *names],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    made: dict[str, list[dict[str, Any]]] = {}
    for line in ran.stdout.splitlines():
        if line.startswith("{"):
            run = json.loads(line)
            made.setdefault(run["name"], []).append(run)
    for name in names:
        text = f"{name}: exit code {ran.returncode}\n{ran.stderr[-6000:]}"
        assert len(made.get(name, ())) == SEEDS, text
    return made


def runs(name: str, form: str) -> list[dict[str, Any]]:
    alone = tuple(each for each in programs.HAZARDS if "kernel" in each)
    together = tuple(each for each in programs.HAZARDS if each not in alone)
    if name in alone:
        return runs_of(form, alone, register_us=50_000)[name]
    return runs_of(form, together, register_us=0)[name]


@pytest.mark.parametrize("name", programs.HAZARDS)
def test_the_published_form_is_found(name: str) -> None:
    for run in runs(name, "red"):
        # What follows from a failure (a replay that waits for ever) is found too, and asks nothing.
        named = {
            finding["kind"]
            for finding in run["findings"]
            if any(line in json.dumps(finding) for line in lines_to_change())
        }
        for kinds in programs.HAZARDS[name].kinds:
            assert named & set(kinds.split("|")), run


@pytest.mark.parametrize("name", programs.HAZARDS)
def test_the_mended_form_is_clean(name: str) -> None:
    for run in runs(name, "green"):
        assert run["findings"] == []
        assert run["error"] == ""


def test_random_programs_agree_with_the_reference() -> None:
    """`make hazards` runs 10,000 of them."""
    programs_to_run = int(os.environ.get("PROGRAMS", "300"))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.device.hazards.random_programs", str(programs_to_run)],
        env={**os.environ, "ASCEND_EMU_CHECK": "report", "ASCEND_EMU_SCHEDULE_SEED": "5"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    totals = json.loads(ran.stdout.splitlines()[-1])
    assert totals["programs"] >= programs_to_run
    assert totals["with a race"] > totals["programs"] // 10
    assert totals["programs"] - totals["with a race"] > totals["programs"] // 10
