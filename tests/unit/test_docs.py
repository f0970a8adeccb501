# SPDX-License-Identifier: Apache-2.0
"""The docs: every table that a page asks for can be made, and says what code and data say."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.compat import pins
from vllm_ascend_mrv2.support import REFUSALS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "tools" / "docs_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_on_a_page_as_it_is_now(tables: ModuleType) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    marks = re.findall(r"<!-- table: (.*?) -->", text)
    assert sorted(marks) == sorted(tables.TABLES)
    assert text.count("<!-- end of table -->") == len(marks)
    for page in PAGES:
        made = page.read_text(encoding="utf-8")
        assert made == tables.refreshed(made), f"{page.name}: `make docs` brings it up to date"
        for link in re.findall(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)\s]+)?\)", made):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_tables_have_what_the_code_has(tables: ModuleType) -> None:
    for switch in envs.SWITCHES:
        assert f"| `{switch.name}` |" in tables.switches()
    for refusal in REFUSALS:
        assert f"| {refusal.feature} | {refusal.why} | {refusal.instead} |" in tables.refusals()
    for pin in pins.cores():
        assert f"| vLLM {pin.vllm} | {pin.torch} | {pin.status}: " in tables.cores()


@pytest.mark.parametrize("pin", pins.cores(), ids=lambda pin: pin.vllm)
def test_results_are_those_that_a_core_is_verified_by(pin: pins.CorePin) -> None:
    """Of the whole lane, with nothing failed."""
    if pin.status != "verified":
        return
    path = ROOT / "docs" / "results" / f"core-{pin.vllm}.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    assert pin.verified == f"{results['on']} by {results['command']}"
    found = {name: pins.public(version) for name, version in results["versions"].items()}
    assert found == pin.versions
    outcomes = {outcome for counts in results["files"].values() for outcome in counts}
    assert outcomes <= {"passed", "skipped"}
    assert "tests/engine/test_exactness.py" in results["files"]


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = [page for entry in config["nav"] for page in entry.values()]
    assert sorted(named) == [page.name for page in PAGES]
