# SPDX-License-Identifier: Apache-2.0
"""The files of an evidence folder: names, hashes, and writes that are there wholly or not at all.

A start becomes visible under raw/ by one rename of a finished folder, so that a killed run leaves
nothing that could be taken for a complete start. Knows nothing of what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
# A start that is being made. Never complete, never counted.
PARTIAL = ".partial"
START_FILES = ("requests.jsonl", "server.log", "client.log", "metrics.txt")
# The runner holds it; it is not part of the evidence.
LOCK = ".lock"


def now() -> str:
    """The time, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def sha256(path: Path) -> str:
    """Of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a file that is complete whenever it is there."""
    unfinished = path.with_name(path.name + PARTIAL)
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_json(path: Path, value: Any) -> None:
    """As `write_text`, indented for diffs."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Whatever the file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """One object per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def files(folder: Path) -> Iterator[Path]:
    """All files that SHA256SUMS must name, relative to the folder, sorted."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and relative.as_posix() not in (SUMS, LOCK):
            yield relative


def write_sums(folder: Path) -> None:
    """SHA256SUMS as `sha256sum -c` reads it."""
    lines = [f"{sha256(folder / path)}  {path.as_posix()}\n" for path in files(folder)]
    write_text(folder / SUMS, "".join(lines))


def read_sums(folder: Path) -> dict[str, str]:
    """Path -> hash, of SHA256SUMS. Raises ValueError for a line that is none of its."""
    named = {}
    for line in (folder / SUMS).read_bytes().decode().removesuffix("\n").split("\n"):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            raise ValueError(f"{SUMS} has a line that is not `<sha256>  <path>`: {line!r}")
        named[name] = digest
    return named


def sum_problems(folder: Path, *, under: tuple[str, ...] = ("",)) -> list[str]:
    """How the files differ from SHA256SUMS; only those whose path begins as one of `under`."""
    try:
        named = read_sums(folder)
    except (OSError, ValueError) as error:
        return [f"{SUMS} cannot be read: {error}"]
    there = {path.as_posix() for path in files(folder)}
    chosen = sorted(name for name in there | set(named) if name.startswith(under))
    problems = []
    for name in chosen:
        if name not in there:
            problems.append(f"{name} is in {SUMS}, and missing")
        elif name not in named:
            problems.append(f"{name} is there, and not in {SUMS}")
        elif sha256(folder / name) != named[name]:
            problems.append(f"{name} has other content than {SUMS} says")
    return problems
