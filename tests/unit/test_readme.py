# SPDX-License-Identifier: Apache-2.0
"""That the README's tables and the code's tables name the same things."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_ascend_mrv2.cli.main import cli
from vllm_ascend_mrv2.compat import pins
from vllm_ascend_mrv2.support import REFUSALS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _rows(first_column: str) -> set[str]:
    """First cells of all table rows that match; backticks off."""
    cells = (line.split("|")[1].strip() for line in README.splitlines() if line.startswith("| "))
    return {cell.strip("`") for cell in cells if re.fullmatch(first_column, cell)}


def test_each_refused_feature_is_in_the_support_table_as_refused() -> None:
    for refusal in REFUSALS:
        assert f"| {refusal.feature} | refused" in README, refusal.feature


def test_the_emulators_switches() -> None:
    config = (ROOT / "csrc" / "emulator" / "runtime" / "config.cpp").read_text(encoding="utf-8")
    assert _rows(r"`ASCEND_EMU_\w+`") == set(re.findall(r"ASCEND_EMU_\w+", config))


def test_the_commands() -> None:
    for name in cli.commands:
        assert re.search(rf"^\| `{name}\b", README, re.MULTILINE), name


def test_the_cores_and_how_they_stand() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| vLLM ")]
    assert rows == [f"| vLLM {p.vllm} | {p.torch} | {p.status} |" for p in pins.cores()]
    assert all(pin.torch == pin.torch_npu for pin in pins.cores()), "one column has both"
