# SPDX-License-Identifier: Apache-2.0
"""Core's own tests, of the pinned version, from the package registry into build/upstream.

pip takes vLLM's source distribution, so that its configuration (registry, mirror, certificates)
holds; the archive's hash is pinned here. Only `make conformance` calls this.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from vllm_ascend_mrv2.cli import torch_index
from vllm_ascend_mrv2.compat import pins

# vLLM's version -> SHA-256 of its source distribution. A new pin needs a new line.
SHA256 = {"0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"}

PARTS = ("tests", "examples")  # some tests import examples


class FetchError(Exception):
    """What could not be had, and what to do."""


def _download(version: str, folder: Path) -> None:
    """The archive, checked by pip against the hash.

    pip also asks an archive for its metadata; the environment makes that the build without
    compiled parts which `install-core` makes, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text(f"vllm=={version} --hash=sha256:{SHA256[version]}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", "vllm", "--dest", str(folder), "-r", str(wanted)]
    command += torch_index.options(pins.stack()["torch"]) or []  # of pip's build environment
    environment = {
        "CARGO": "/nonexistent",
        "VLLM_TARGET_DEVICE": "empty",
        "VLLM_VERSION_OVERRIDE": version,
    }
    print("Fetching vLLM's source distribution; waits for: 45 MB, and pip's look at it, a minute.")
    code = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    if code != 0:
        raise FetchError(
            f"pip could not download vLLM {version} as source (exit code {code}); its own message "
            "is above. Mend that and run the command again."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def core_tests(cache: Path) -> Path:
    """Core's source folder, holding PARTS as released. Fetched and unpacked where it is absent.

    cache: the folder that keeps both. Raises FetchError.
    """
    version = pins.stack()["vllm"]
    if version not in SHA256:
        raise FetchError(f"No hash of vLLM {version}'s source distribution: add it to {__file__}.")
    name = f"vllm-{version}"
    folder, stamp = cache / "released" / name, cache / "released" / f".{name}.stamp"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == SHA256[version]:
        return folder
    archive = cache / f"{name}.tar.gz"
    if not archive.is_file() or _sha256(archive) != SHA256[version]:
        archive.unlink(missing_ok=True)
        _download(version, cache)
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as bundle:
        kept = tuple(f"{name}/{part}/" for part in PARTS)
        members = [member for member in bundle if member.name.startswith(kept)]
        bundle.extractall(folder.parent, members=members, filter="data")
    stamp.write_text(SHA256[version], encoding="utf-8")
    return folder
