# SPDX-License-Identifier: Apache-2.0
"""Where pip is told to find torch's CPU build: by a real pip, on registries that are folders."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from vllm_ascend_mrv2.cli import torch_index
from vllm_ascend_mrv2.compat import pins


def add(registry: Path, version: str) -> None:
    """A torch that has nothing in it."""
    name = f"torch-{version}-py3-none-any.whl"
    (registry / "torch").mkdir(parents=True, exist_ok=True)
    (registry / "torch" / "index.html").write_text(f'<!DOCTYPE html><a href="{name}">{name}</a>')
    with zipfile.ZipFile(registry / "torch" / name, "w") as wheel:
        info = f"torch-{version}.dist-info"
        about = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        wheel.writestr(f"{info}/METADATA", about)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("configured", "pytorchs", "is_named"),
    [
        ("1.2.3+cpu", "1.2.3+cpu", False),
        ("1.2.3", "1.2.3+cpu", True),  # as PyPI has it
        ("1.2.3", "1.2.4+cpu", None),
    ],
)
def test_the_configured_registry_comes_first(
    configured: str,
    pytorchs: str,
    is_named: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    add(ours, configured)
    add(other, pytorchs)
    use(ours, monkeypatch)
    monkeypatch.setattr(pins, "cpu_torch_index", lambda: f"file://{other}")
    named = {None: None, False: [], True: ["--extra-index-url", f"file://{other}"]}[is_named]
    assert torch_index.options("1.2.3") == named


def test_one_that_is_installed_is_not_found_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's build environments have nothing of this one."""
    add(tmp_path / "ours", "1.2.3")
    use(tmp_path / "ours", monkeypatch)
    monkeypatch.setattr(pins, "cpu_torch_index", lambda: f"file://{tmp_path}/nothing")
    assert torch_index.options(pins.stack()["torch"]) is None


def use(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That registry and no other, whatever pip is configured for."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{registry}")
