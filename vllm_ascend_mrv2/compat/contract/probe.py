# SPDX-License-Identifier: Apache-2.0
"""The contract at start-up: does the installed core, as its files are now, have what we rely on?

The check reads source and takes seconds; its result is kept under a name made of the size and time
of every file that it depends on. So a start costs one look at those (20 ms for core's 2600 files),
and an edit of core, another build or another release is checked anew, once.
Imports neither torch nor vllm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from vllm_ascend_mrv2.compat.contract.check import Mismatch, check_folder

_OURS = Path(__file__).parents[1]  # the contract, how it is checked, and the known differences
_SHOWN = 5


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.name.endswith((".py", ".json")):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns


def state_of(core: Path) -> str:
    """A name for the core in that folder (which holds `vllm/`) and our contract, as they are."""
    files = [*sorted(_files(str(core / "vllm"))), *sorted(_files(str(_OURS)))]
    return hashlib.sha256(repr(files).encode()).hexdigest()[:32]


def probe(core: Path, results: Path) -> tuple[Mismatch, ...]:
    """What of the contract that core lacks.

    core: the folder that holds `vllm/`. results: a folder for what was found out, made where it is
    missing; where it cannot be written, each call checks anew.
    """
    kept = results / f"{state_of(core)}.json"
    try:
        return tuple(Mismatch(**entry) for entry in json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    found = tuple(check_folder(core))
    partial = kept.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        results.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps([asdict(entry) for entry in found]), encoding="utf-8")
        partial.rename(kept)  # at once: others start at the same time
    return found


def installed_core() -> Path | None:
    """The folder that holds the `vllm/` that this process would import, or None without one."""
    spec = find_spec("vllm")  # of a top-level package: nothing is imported
    if spec is None or spec.origin is None:  # a folder that another distribution left behind
        return None
    return Path(spec.origin).parents[1]


def start_up_problems(results: Path) -> list[str]:
    """One line for each name that the installed core lacks; empty where all is as relied on."""
    core = installed_core()
    found = probe(core, results) if core is not None else ()
    lines = [
        f"core's {entry.symbol} is not as relied on: expected {entry.expected}, found "
        f"{entry.found}; look at {entry.look_at}"
        for entry in found[:_SHOWN]
    ]
    if more := len(found) - len(lines):
        lines.append(f"and {more} more names: vllm-ascend-mrv2 contract check installed")
    return lines
