# SPDX-License-Identifier: Apache-2.0
"""`contract` as a user runs it, and getting cores by the real pip from a folder of archives."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.contract.commands import contract
from vllm_ascend_mrv2.cli.contract.fetch import fetch, newest_version

PYPROJECT = """
[build-system]
requires = ["setuptools>=77", "torch==2.13.0"]
build-backend = "setuptools.build_meta"
"""


def _sdist(folder: Path, version: str) -> None:
    """A source archive whose setup.py must not be run."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        "pyproject.toml": PYPROJECT,
        "setup.py": "raise SystemExit('code of the archive was run')\n",
        "vllm/__init__.py": "NAME = 1\n",
        "vllm/v1/kernel.cu": "",
        "vllm/v1/utils.py": "def request_memory(): ...\n",
        "tests/test_a.py": "",
    }
    with tarfile.open(folder / f"vllm-{version}.tar.gz", "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"vllm-{version}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))


def _wheel(folder: Path, version: str) -> None:
    with zipfile.ZipFile(folder / f"vllm-{version}-py3-none-any.whl", "w") as wheel:
        info = f"vllm-{version}.dist-info"
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows."""
    folder = tmp_path / "archives"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


def test_a_core_is_unpacked_and_nothing_of_it_is_run(archives: Path, tmp_path: Path) -> None:
    _sdist(archives, "9.9.9")
    folder = fetch("9.9.9", tmp_path / "cores")
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert files == ["vllm/__init__.py", "vllm/v1/utils.py"]
    assert sorted(p.name for p in (tmp_path / "cores").iterdir()) == ["9.9.9"], "nothing is left"
    (archives / "vllm-9.9.9.tar.gz").unlink()
    assert fetch("9.9.9", tmp_path / "cores") == folder, "the second time it is in the cache"


def test_a_pinned_core_must_have_its_hash(archives: Path, tmp_path: Path) -> None:
    _sdist(archives, "0.31.0")
    with pytest.raises(CliError) as caught:
        fetch("0.31.0", tmp_path / "cores")
    assert "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380" in caught.value.why
    assert not (tmp_path / "cores" / "0.31.0").exists()


def test_a_version_that_does_not_exist(archives: Path, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="pip download failed") as caught:
        fetch("9.9.8", tmp_path / "cores")
    assert "No matching distribution found for vllm==9.9.8" in caught.value.why
    assert list((tmp_path / "cores").iterdir()) == []


def test_the_newest_is_asked_of_pip(archives: Path) -> None:
    for version in ("9.9.9", "9.10.0", "9.11.0rc1"):
        _wheel(archives, version)
    assert newest_version() == "9.10.0"


def _check(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(contract, ["check", *arguments])
    return result.exit_code, result.stdout


def test_the_installed_core_fits() -> None:
    code, shown = _check("installed")
    assert code == 0
    assert shown.startswith("vLLM 0.32.0 (verified): all ")


def test_a_folder_is_a_core_that_has_no_entry() -> None:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = str(Path(spec.submodule_search_locations[0]).parent)
    code, shown = _check(folder, "--json")
    assert code == 0
    assert json.loads(shown) == [{"core": folder, "status": "unpinned", "mismatches": []}]


def test_a_core_that_does_not_fit_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    code, shown = _check(str(tmp_path), "--json")
    assert code == 1
    (report,) = json.loads(shown)
    missing = {m["symbol"]: m["found"] for m in report["mismatches"]}
    assert missing["vllm.config:VllmConfig"] == "nothing: no module vllm.config"
    assert "vllm.config:VllmConfig.model_config" not in missing


def test_a_folder_without_a_core(tmp_path: Path) -> None:
    result = CliRunner().invoke(contract, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path} holds no vllm/__init__.py" in result.output
    assert "  do:  Name the folder that holds a `vllm/`, a version, `newest`" in result.output
