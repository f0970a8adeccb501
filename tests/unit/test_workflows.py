# SPDX-License-Identifier: Apache-2.0
"""The workflows call make targets that are there, and the lanes are the cores that are verified."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_ascend_mrv2.compat import pins

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


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


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_makes_is_a_target(path: Path) -> None:
    made = {
        target
        for command in commands(_load(path))
        for target in re.findall(r"\bmake (?:--silent )?([a-z-]+)", command)
    }
    assert made
    assert made <= TARGETS


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
    made = " ".join(command for path in WORKFLOWS for command in commands(_load(path)))
    for target in (
        *("lint", "test", "hazards", "order", "conformance", "contract"),
        *("dist", "docs", "test-install"),
    ):
        assert f"make {target}" in made
