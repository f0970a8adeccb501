# SPDX-License-Identifier: Apache-2.0
"""PyTorch's index is named where pip finds no CPU build of that torch, and only there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from vllm_ascend_mrv2.cli import torch_index
from vllm_ascend_mrv2.compat import pins

NAMED = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize(
    ("there", "options"),
    [
        ("1.2.3+cpu", []),
        ("1.2.3", NAMED),
    ],
)
def test_where_pip_finds_the_cpu_build(
    there: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / f"torch-{there}-py3-none-any.whl", "w") as wheel:
        info = f"torch-{there}.dist-info"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {there}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert torch_index.options("1.2.3") == options


def test_one_that_is_installed_is_not_found_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's build environments have nothing of this one."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert torch_index.options(pins.stack()["torch"]) == NAMED
