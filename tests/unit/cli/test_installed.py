# SPDX-License-Identifier: Apache-2.0
"""Installations that were killed: a real pip, a real environment, and small distributions.

They have the names and versions of the reference, and are made here. What a killed pip leaves is
made by hand, since when it is killed is chance: metadata, half a library, no INSTALLER.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import vllm_ascend_mrv2
from vllm_ascend_mrv2.compat import pins

CHECKOUT = Path(vllm_ascend_mrv2.__file__).parents[1]
# What the command line imports.
NEEDED = ("click", "packaging", "rich", "markdown_it", "mdurl", "pygments", "numpy")
CORE = pins.reference()
LIBRARY = b"\0" * 4000
WHOLE = f"vLLM {CORE.vllm} without CUDA packages is installed, with all that it requires.\n"
# vLLM's own build needs nothing from a registry.
BACKEND = """
import shutil
def build_wheel(folder, settings=None, metadata=None):
    name = "vllm-{version}-py3-none-any.whl"
    shutil.copy(name, folder)
    return name
"""


def _wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    package, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    about = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    about += [f"Requires-Dist: {line}" for line in requires]
    about += ["Provides-Extra: more"] if "extra ==" in "".join(requires) else []
    files = {
        f"{info}/METADATA": "\n".join(about).encode() + b"\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{package}/__init__.py": b"",
        f"{package}/lib.so": LIBRARY,
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    made = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return made


def _registry(folder: Path) -> None:
    folder.mkdir()
    _wheel(folder, "torch", f"{CORE.torch}+cpu")
    _wheel(folder, "torch-npu", CORE.torch_npu, f"torch=={CORE.torch}.*", "of-npu")
    for name, needs in (("direct", "indirect[more]"), ("more", "of-npu"), ("of-npu", "")):
        _wheel(folder, name, "1.0", *filter(None, [needs]))
    _wheel(folder, "indirect", "1.0", "more; extra == 'more'")
    source = folder.parent / f"vllm-{CORE.vllm}"
    source.mkdir()
    _wheel(source, "vllm", CORE.vllm, f"torch=={CORE.torch}", "direct")
    (source / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {CORE.vllm}\n")
    (source / "backend.py").write_text(BACKEND.replace("{version}", CORE.vllm))
    build = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    (source / "pyproject.toml").write_text(build)
    with tarfile.open(folder / f"{source.name}.tar.gz", "w:gz") as sdist:
        sdist.add(source, source.name)


@dataclass
class Environment:
    """A virtual environment, and all that its pip can find."""

    folder: Path
    registry: Path

    @property
    def site(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / "python"), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(CHECKOUT),
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.registry),
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from vllm_ascend_mrv2.cli.main import main; main()", *arguments)

    def install_core(self) -> str:
        """What it says, on stderr; it must succeed."""
        done = self.cli("install-core")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    def ensure_installed(self) -> None:
        code = "from vllm_ascend_mrv2.cli.install_core import ensure_installed as f; f()"
        done = self.run("-c", code)
        assert done.returncode == 0, done.stdout + done.stderr

    def findings(self) -> dict[str, tuple[str, str]]:
        """Topic -> what it says and the next step, of the problems about installed packages."""
        found: list[dict[str, Any]] = json.loads(self.cli("doctor", "--json").stdout)["findings"]
        topics = ("versions", "torch", "vLLM", "core symbols")
        return {
            f["topic"]: (f["says"], f["next_step"])
            for f in found
            if f["topic"] in topics and f["level"] != "ok"
        }

    def info(self, name: str) -> Path:
        (found,) = self.site.glob(f"{name.replace('-', '_')}-*.dist-info")
        return found

    def library(self, name: str) -> Path:
        return self.site / name.replace("-", "_") / "lib.so"

    def is_whole(self, name: str) -> bool:
        files = (self.info(name) / "INSTALLER", self.library(name))
        return all(f.is_file() for f in files) and files[1].read_bytes() == LIBRARY


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One in which `install-core` has ended."""
    folder = tmp_path_factory.mktemp("installed")
    made = Environment(folder / "env", folder / "registry")
    venv.create(made.folder, with_pip=True, symlinks=True)
    for name in NEEDED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (made.site / name).symlink_to(Path(spec.origin).parent)
    _registry(made.registry)
    said = made.install_core()
    assert said.endswith(f"vLLM {CORE.vllm} is installed.\n")
    assert made.install_core() == WHOLE
    return made


def no_installer(at: Environment, name: str) -> None:
    """As pip leaves it that is killed while it unpacks."""
    (at.info(name) / "INSTALLER").unlink()
    at.library(name).write_bytes(LIBRARY[:100])


def no_record(at: Environment, name: str) -> None:
    """The same, where its wheel has the RECORD after what was unpacked."""
    no_installer(at, name)
    (at.info(name) / "RECORD").unlink()


def half_metadata(at: Environment, name: str) -> None:
    """The same, while the metadata itself was written."""
    no_record(at, name)
    (at.info(name) / "METADATA").write_text("Metadata-Version: 2.1\n")


def half_a_library(at: Environment, name: str) -> None:
    """As a full disk or a lost power leaves it."""
    at.library(name).write_bytes(LIBRARY[:100])


def no_library(at: Environment, name: str) -> None:
    at.library(name).unlink()


Tear = Callable[[Environment, str], None]
KILLED: tuple[Tear, ...] = (no_installer, no_record, half_metadata)


@pytest.mark.parametrize(
    ("tear", "names"),
    [
        *((tear, ("torch-npu",)) for tear in (*KILLED, half_a_library, no_library)),
        *((tear, ("vllm",)) for tear in (no_installer, no_record)),
        (no_installer, ("torch", "torch-npu", "vllm", "more")),
        (no_installer, ("direct",)),
        (no_record, ("more",)),  # what one requires by an extra of another
        (half_metadata, ("indirect", "of-npu")),
    ],
)
def test_what_a_killed_installation_left_is_installed_anew(
    installed: Environment, tear: Tear, names: tuple[str, ...]
) -> None:
    for name in names:
        tear(installed, name)
        assert not installed.is_whole(name)
    said = installed.install_core()
    assert all(installed.is_whole(name) for name in names), said
    assert installed.install_core() == WHOLE


def test_one_of_torchs_is_not_built_again_for_another(installed: Environment) -> None:
    no_installer(installed, "torch-npu")
    core = installed.library("vllm").stat().st_mtime_ns
    installed.install_core()
    assert installed.library("vllm").stat().st_mtime_ns == core


def test_run_and_doctor_see_it_too(installed: Environment) -> None:
    no_installer(installed, "torch-npu")
    shown = f"vllm {CORE.vllm}, torch {CORE.torch}+cpu, torch-npu {CORE.torch_npu}"
    found = installed.findings()
    assert found["versions"] == (f"{shown}: of a verified set, but not whole, see below", "")
    assert found["torch"] == (
        f"not installed whole: torch-npu {CORE.torch_npu} (its installation did not end)",
        "vllm-ascend-mrv2 install-core",
    )
    installed.ensure_installed()
    assert installed.is_whole("torch-npu")
    half_metadata(installed, "vllm")
    installed.ensure_installed()
    assert installed.is_whole("vllm")
    half_a_library(installed, "vllm")
    found = installed.findings()
    assert found["vLLM"] == (
        f"vllm {CORE.vllm} is not installed whole: vllm/lib.so has 100 of 4000 bytes",
        "vllm-ascend-mrv2 install-core",
    )
    assert "core symbols" not in found
    installed.ensure_installed()
    assert installed.is_whole("vllm")
    no_installer(installed, "more")
    assert installed.findings()["vLLM"] == (
        f"vllm {CORE.vllm} lacks 1 of the packages that it requires (more; extra == "
        '"more"), as after an interrupted installation',
        "vllm-ascend-mrv2 install-core",
    )
    installed.ensure_installed()
    assert installed.is_whole("more")


def test_half_a_core_without_metadata_is_one_problem(installed: Environment) -> None:
    shutil.rmtree(installed.info("vllm"))
    found = installed.findings()
    assert found["vLLM"] == (
        f"not installed: {installed.site}/vllm has no metadata, as after an interrupted "
        "installation",
        "vllm-ascend-mrv2 install-core",
    )
    assert "core symbols" not in found
    installed.install_core()
    assert installed.is_whole("vllm")


def test_what_works_is_left_alone(installed: Environment) -> None:
    """A core that someone edits, compiled caches, and an installation without RECORD."""
    edited = installed.site / "vllm" / "__init__.py"
    edited.write_text("print('here')\n")
    (installed.info("direct") / "RECORD").unlink()
    for path in installed.site.glob("torch/__pycache__/*.pyc"):
        path.unlink()
    assert installed.install_core() == WHOLE
    assert edited.read_text() == "print('here')\n"


def test_this_environment_is_whole() -> None:
    """With real distributions: an installed RECORD says of none of them what is not so."""
    code = (
        "from vllm_ascend_mrv2.cli.installed import NOTHING, lacks\n"
        "found = lacks('vllm', 'torch', 'torch-npu')\n"
        "assert found == NOTHING, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
