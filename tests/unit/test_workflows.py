# SPDX-License-Identifier: Apache-2.0
"""The workflows call make targets that are there, and the lanes are the cores that are verified."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_ascend_mrv2.compat import pins

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(" ".join(re.findall(r"^([a-z -]+):", MAKEFILE, re.MULTILINE)).split())
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))


def commands(node: Any) -> Iterator[str]:
    """Every `run` in a workflow, those of a matrix too."""
    if isinstance(node, dict):
        if isinstance(node.get("run"), str):
            yield node["run"]
        for value in node.values():
            yield from commands(value)
    elif isinstance(node, list):
        for value in node:
            yield from commands(value)


def _load(path: Path) -> dict[Any, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def made(path: Path) -> Iterator[list[str]]:
    """The words after each `make` of a workflow: targets, and variables with their values."""
    for command in commands(_load(path)):
        for line in re.findall(r"^ *make (.*?)(?: \| .*)?$", command, re.MULTILINE):
            written_out = re.sub(r"\$\{\{.*?\}\}", "OF-THE-MATRIX", line)
            yield [word for word in shlex.split(written_out) if word != "--silent"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_makes_is_a_target_with_its_variables(path: Path) -> None:
    calls = list(made(path))
    assert calls
    for words in calls:
        given = {name: value for name, is_set, value in (w.partition("=") for w in words) if is_set}
        assert {word for word in words if "=" not in word} <= TARGETS
        assert set(given) <= VARIABLES
        for tests in given.get("TESTS", "").split():
            assert (ROOT / tests).exists()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_little_and_not_for_ever(path: Path) -> None:
    workflow = _load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120


def test_each_verified_core_has_its_lane() -> None:
    matrix = _load(ROOT / ".github" / "workflows" / "core.yml")["jobs"]["runtime"]["strategy"]
    assert {pin.vllm for pin in pins.verified_cores()} <= set(matrix["matrix"]["core"])


def test_what_is_asked_for_is_there() -> None:
    targets = {word for path in WORKFLOWS for words in made(path) for word in words}
    assert targets >= {
        *("lint", "test", "test-spec", "test-parallel", "hazards", "order", "conformance"),
        *("lm-eval", "contract", "dist", "dist-compile", "docs", "test-install"),
    }
