# SPDX-License-Identifier: Apache-2.0
"""The wheel: what it carries, what it requires, and that each version is said once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.xdist_group("wheel")  # built once


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built as a user's pip builds it."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(out), str(ROOT)],
        check=True,
    )
    (file,) = out.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_is_for_any_platform_and_carries_the_sources(wheel: zipfile.ZipFile) -> None:
    assert Path(str(wheel.filename)).name.endswith("-py3-none-any.whl")
    names = set(wheel.namelist())
    expected = {
        f"vllm_ascend_mrv2/_csrc/{path.relative_to(ROOT / 'csrc').as_posix()}"
        for pattern in ("CMakeLists.txt", "*.cpp", "*.h", "*.inc")
        for path in (ROOT / "csrc").rglob(pattern)
    }
    assert "vllm_ascend_mrv2/_csrc/emulator/CMakeLists.txt" in expected
    assert expected - names == set()
    assert "vllm_ascend_mrv2/compat/pins.toml" in names
    assert "vllm_ascend_mrv2/compat/contract/contract.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".so", ".o"))]
    outside = {name.split("/")[0] for name in names}
    assert {part for part in outside if not part.endswith(".dist-info")} == {"vllm_ascend_mrv2"}


def test_the_entry_points(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    lines = wheel.read(name).decode().splitlines()
    assert "vllm-ascend-mrv2 = vllm_ascend_mrv2.cli.main:main" in lines
    assert (
        lines[lines.index("[vllm.platform_plugins]") + 1]
        == "ascend_mrv2 = vllm_ascend_mrv2:register"
    )


def test_nothing_required_brings_cuda_in(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("METADATA"))
    lines = message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or []
    plain = {Requirement(line).name for line in lines if Requirement(line).marker is None}
    assert plain == {"click", "numpy", "packaging", "rich"}
