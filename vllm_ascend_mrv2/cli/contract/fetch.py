# SPDX-License-Identifier: Apache-2.0
"""Gets a core's Python source: its source archive, by pip, so from wherever pip is set up to ask.

Nothing of the archive is run: pip wants metadata from the build backend before it hands an archive
out, and gets it from a stand-in. Only vllm/**/*.py is unpacked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from vllm_ascend_mrv2.cli.console import CliError, say
from vllm_ascend_mrv2.compat import pins

# vLLM's build backend, as far as `pip download` asks it.
_BACKEND = """
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = Path(folder) / "vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\n")
    return info.name
"""


def _pip(arguments: list[str], **environ: str) -> str:
    """pip's stdout. Raises CliError with the end of its stderr where it fails."""
    if find_spec("pip") is None:
        raise CliError(
            f"{sys.executable} has no pip.",
            why="a core's source archive is downloaded with it",
            do=f"{sys.executable} -m ensurepip, or name a folder that holds the core's vllm/.",
        )
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CliError(
            f"pip {arguments[0]} failed with exit code {done.returncode}.",
            why="\n       ".join(done.stderr.strip().splitlines()[-4:]),
            do="Check that a package registry is within pip's reach, and that the version exists.",
        )
    return done.stdout


def newest_version() -> str:
    """The newest release of vLLM that pip finds a wheel of for this machine."""
    report = _pip(
        [
            *("install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"),
            *("--only-binary=vllm", "--report=-", "vllm"),
        ]
    )
    (found,) = json.loads(report)["install"]
    return str(found["metadata"]["version"])


def fetch(version: str, cache: Path) -> Path:
    """The folder that holds `vllm/` of that version; downloaded unless it is in the cache.

    The archive of a pinned core must have its pinned hash. Raises CliError.
    """
    cache = cache.absolute()  # pip's children run elsewhere
    done = cache / version
    if (done / "vllm").is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    pin = next((pin for pin in pins.cores() if pin.vllm == version), None)
    say(f"Downloading the source archive of vLLM {version} (about 45 MB).")
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        _download(version, pin, folder)
        (archive,) = folder.glob("*.tar.gz")
        _unpack(archive, folder / "source")
        (folder / "source").rename(done)  # at once, so that it is never there in part
    return done


def _download(version: str, pin: pins.CorePin | None, folder: Path) -> None:
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_BACKEND.format(version=version), encoding="utf-8")
    requirement = f"vllm=={version}"
    if pin is not None:
        requirement += f" --hash=sha256:{pin.sdist_sha256}"
    else:
        say(f"No hash is pinned for vLLM {version}: what the registry hands out is taken.")
    (folder / "requirements.txt").write_text(requirement + "\n", encoding="utf-8")
    _pip(
        [
            *("download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary=vllm"),
            *("--dest", str(folder), "-r", str(folder / "requirements.txt")),
        ],
        PYTHONPATH=str(backend.parent),
    )


def _unpack(archive: Path, to: Path) -> None:
    """vllm/**/*.py of an archive whose paths begin with one folder."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts[1:]
            if not member.isfile() or parts[:1] != ("vllm",) or ".." in parts:
                continue
            if member.name.endswith(".py"):
                path = to.joinpath(*parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with content, path.open("wb") as out:
                    shutil.copyfileobj(content, out)
