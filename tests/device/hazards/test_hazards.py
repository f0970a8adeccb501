# SPDX-License-Identifier: Apache-2.0
"""The order checker finds each published failure in its first form, and nothing in its mended one.

`make hazards SEEDS=100` runs each form under that many seeds of the adversarial scheduler; without
it a few are tried.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.device.hazards import programs
from tests.helpers.emulated import OWN_FINDINGS

ROOT = Path(__file__).resolve().parents[3]
SEEDS = int(os.environ.get("SEEDS", "3"))
TIMEOUT_S = 60 + 10 * SEEDS
pytestmark = [pytest.mark.timeout(2 * TIMEOUT_S), pytest.mark.xdist_group("hazards")]


def named_lines(finding: dict[str, Any]) -> set[int]:
    """Lines of programs.py in the report of a finding; a deadlock's are in its message."""
    return {int(line) for line in re.findall(r"programs\.py:(\d+) in", json.dumps(finding))}


@cache
def runs(form: str) -> dict[str, list[dict[str, Any]]]:
    """What was found in SEEDS runs of one form of each, in one process: torch takes long to load.

    With one Python frame for each launch, as the checker keeps where nothing else is asked for.
    """
    names = tuple(programs.HAZARDS)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "ASCEND_EMU_CHECK_DEPTH"},
        **OWN_FINDINGS,
        "ASCEND_EMU_CHECK_STALL_MS": "300",
        "ASCEND_EMU_CHECK_REGISTER_US": "0",  # two_threads_register_one_kernel needs no clock
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


@pytest.mark.parametrize("name", programs.HAZARDS)
def test_the_published_form_is_found(name: str) -> None:
    hazard = programs.HAZARDS[name]
    assert hazard.lines
    for run in runs("red")[name]:
        naming = [each for each in run["findings"] if named_lines(each) & hazard.lines]
        named = {finding["kind"] for finding in naming}
        for kinds in hazard.kinds:
            assert named & set(kinds.split("|")), run
        assert hazard.lines <= set().union(*map(named_lines, naming)), run
        if hazard.follows:
            assert hazard.follows in {finding["kind"] for finding in run["findings"]}, run


@pytest.mark.parametrize("name", programs.HAZARDS)
def test_the_mended_form_is_clean(name: str) -> None:
    for run in runs("green")[name]:
        assert run["findings"] == []
        assert run["error"] == ""


def test_random_programs_agree_with_the_reference() -> None:
    """`make hazards` runs 10,000 of them."""
    programs_to_run = int(os.environ.get("PROGRAMS", "300"))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.device.hazards.random_programs", str(programs_to_run)],
        env={**os.environ, **OWN_FINDINGS},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # every finding of every program
        text=True,
        timeout=1200,  # 10,000 take less than two minutes of two cores
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    totals = json.loads(ran.stdout.splitlines()[-1])
    assert totals["programs"] >= programs_to_run
    for kind in ("without a finding", "unordered-access", "freed-in-use"):
        assert totals[kind] > programs_to_run // 30, totals
    assert totals["use-after-free"] > 0, totals  # where the device was slower than the host
