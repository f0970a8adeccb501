# SPDX-License-Identifier: Apache-2.0
"""What a run runs on: installed distributions, checkpoint, device libraries, machine, commit.

Answers questions; refuses nothing but a protocol that git does not vouch for.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import vllm_ascend_mrv2
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence.protocol import Protocol
from vllm_ascend_mrv2.cli.toolkit import LIBRARIES, source_dir

OURS = "vllm-ascend-mrv2"


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def folder_digest(folder: Path, *, skip: tuple[str, ...] = ()) -> str:
    """One hash over names and contents of all files below, whatever their dates and modes."""
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and not set(skip) & {*p.parts}]
    return _digest([f"{files.sha256(p)}  {p.relative_to(folder).as_posix()}" for p in paths])


def distribution_digest(name: str) -> str:
    """One hash over the hashes that the wheel's RECORD gives: the same wherever it is installed.

    What pip adds at installation (scripts, compiled files, its own notes) is left out. Of our own
    distribution, the files themselves, because a checkout has no RECORD of them.
    """
    if name == OURS:
        package = Path(vllm_ascend_mrv2.__file__).parent
        sources = folder_digest(source_dir())
        return _digest([folder_digest(package, skip=("__pycache__", "_csrc")), sources])
    record = distribution(name).read_text("RECORD")
    if record is None:
        raise CliError(f"{name} is installed without a RECORD.", do="Install it from a wheel.")
    added = {"INSTALLER", "REQUESTED", "direct_url.json"}
    lines = [line for line in record.splitlines() if ",sha256=" in line]
    return _digest(
        [x for x in lines if not x.startswith("..") and Path(x.split(",")[0]).name not in added]
    )


def stack(names: list[str]) -> dict[str, dict[str, str]]:
    """Name -> version and digest, of what is installed; empty strings for what is not."""
    found = {}
    for name in names:
        try:
            found[name] = {
                "version": distribution(name).version,
                "sha256": distribution_digest(name),
            }
        except PackageNotFoundError:
            found[name] = {"version": "", "sha256": ""}
    return found


def device() -> dict[str, Any]:
    """Whether the device libraries on the loader's path are the emulator's, and their hash."""
    try:
        loaded = ctypes.CDLL(LIBRARIES[0])
    except OSError as error:
        raise CliError(
            "The CANN libraries are not on the loader's path.",
            why=str(error),
            do="Source CANN's set_env.sh, or run `vllm-ascend-mrv2 emulator run -- "
            "vllm-ascend-mrv2 evidence run FOLDER`.",
        ) from error
    if not hasattr(loaded, "emu_version"):
        return {"emulated": False, "sha256": ""}
    mapped = Path("/proc/self/maps").read_text().splitlines()
    path = next(Path(x.split()[-1]) for x in mapped if x.endswith("/" + LIBRARIES[0]))
    return {
        "emulated": True,
        "sha256": _digest([files.sha256(path.with_name(name)) for name in LIBRARIES]),
    }


def machine() -> dict[str, Any]:
    """CPU model, CPUs that this process may use, memory, system."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [x.partition(":")[2].strip() for x in info if x.startswith("model name")]
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu_model": models[0] if models else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": pages * page_bytes,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def git(folder: Path, *arguments: str) -> str | None:
    """git's answer in that folder, or None where it has none or is not installed."""
    try:
        shown = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return shown.stdout if shown.returncode == 0 else None


def protocol_commit(folder: Path) -> str:
    """The commit that last changed protocol.json. Raises CliError unless it is as committed."""
    commit = git(folder, "log", "-1", "--format=%H", "--", "protocol.json")
    committed = git(folder, "show", "HEAD:./protocol.json")
    if commit and committed == (folder / "protocol.json").read_text(encoding="utf-8"):
        return commit.strip()
    raise CliError(
        f"{folder / 'protocol.json'} is not committed in git"
        + (" as it is now." if committed else "."),
        why="A protocol that can be changed after the data proves nothing.",
        do="git add and git commit it, then run again. Where there is no git: --no-git REASON; the "
        "reason becomes part of the evidence.",
    )


def differences(protocol: Protocol, observed: dict[str, Any]) -> list[str]:
    """How what is here (`stack`, `device`, `machine`, `model`) differs from the protocol's."""
    problems = []
    for name, wanted in protocol.stack.items():
        found = observed["stack"][name]
        if found["version"] != wanted.version:
            problems.append(f"{name} is {found['version'] or 'missing'}, not {wanted.version}")
        elif found["sha256"] != wanted.sha256:
            problems.append(f"{name} {wanted.version} has other files ({found['sha256']})")
    if observed["device"] != {
        "emulated": protocol.device.emulated,
        "sha256": protocol.device.sha256,
    }:
        problems.append(f"the device libraries are others: {observed['device']}")
    problems += [
        f"{key} is {observed['machine'][key]!r}"
        for key in ("cpu_model", "cpus")
        if observed["machine"][key] != getattr(protocol.machine, key)
    ]
    if observed["model"] != protocol.model.sha256:
        problems.append(f"the checkpoint is another ({observed['model']})")
    return problems
