# SPDX-License-Identifier: Apache-2.0
"""Whether an evidence folder is whole, unchanged, and says what its raw data say.

Reads only. Every problem is one line; no line means that the folder holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence import protocol as protocols
from vllm_ascend_mrv2.cli.evidence import provenance, summary
from vllm_ascend_mrv2.cli.evidence.protocol import Protocol

# Platforms may differ in the last digits of a logarithm.
_RELATIVE = 1e-6


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def first_data_at(folder: Path) -> str:
    """When the first start began, excluded ones included; empty before that."""
    run = folder / "run.json"
    if not run.is_file():
        return ""
    starts = [files.read_json(p)["began_at"] for p in folder.glob("raw/*/start.json")]
    # Of an unfinished start only the end is known, which is later than the run's beginning.
    excluded = [files.read_json(run)["began_at"]] if (folder / "excluded").is_dir() else []
    return min([*starts, *excluded], default="")


def amendment_problems(folder: Path) -> list[str]:
    """Each line is {"at": time, "seen_data": bool, "text": ...}, and marked as its time says."""
    try:
        lines = summary.amendments(folder)
    except ValueError as error:
        return [f"amendments.jsonl is not JSON lines: {error}"]
    first, problems = first_data_at(folder), []
    for number, line in enumerate(lines, 1):
        where = f"amendments.jsonl, line {number}"
        if (
            not isinstance(line, dict)
            or set(line) != {"at", "seen_data", "text"}
            or not isinstance(line["seen_data"], bool)
            or not line["text"]
        ):
            problems.append(f"{where}: needs at, seen_data (true or false) and text")
            continue
        try:
            is_later = bool(first) and _time(line["at"]) > _time(first)
        except (TypeError, ValueError):
            problems.append(f"{where}: {line['at']!r} is not a time")
            continue
        if is_later and not line["seen_data"]:
            problems.append(f"{where}: marked as before seeing data, dated after the first data")
    return problems


def _protocol_problems(folder: Path, run: dict[str, Any]) -> list[str]:
    problems = []
    text = (folder / "protocol.json").read_text(encoding="utf-8")
    if files.sha256(folder / "protocol.json") != run["protocol_sha256"]:
        problems.append("protocol.json is not the one that was run")
    commit = run["protocol_commit"]
    if not commit:
        if not run["no_git_reason"]:
            problems.append("run.json names neither the protocol's commit nor why there is none")
        return problems
    # Away from its repository (a copy, a shallow clone) the commit cannot be asked.
    if provenance.git(folder, "cat-file", "-e", commit) is not None:
        if provenance.git(folder, "show", f"{commit}:./protocol.json") != text:
            problems.append(f"protocol.json differs from the one in commit {commit}")
        made = provenance.git(folder, "show", "-s", "--format=%cI", commit) or ""
        if _time(made.strip()) > _time(run["began_at"]):
            problems.append(f"protocol.json was committed ({made.strip()}) after the run began")
    return problems


def _start_problems(protocol: Protocol, folder: Path, run: dict[str, Any]) -> list[str]:
    """Each start's own hashes, and that the starts followed each other in the protocol's order."""
    problems, before = [], run["began_at"]
    for start in protocol.schedule():
        place = folder / "raw" / start.folder
        record = files.read_json(place / "start.json")
        for name, digest in record["files"].items():
            if not (place / name).is_file() or files.sha256(place / name) != digest:
                problems.append(f"raw/{start.folder}/{name} is not what the run wrote")
        problems += [
            f"raw/{start.folder}/{path.name} is not the run's"
            for path in sorted(place.iterdir())
            if path.name not in {*record["files"], "start.json"}
        ]
        if (record["start"], record["variant"]) != (start.number, start.variant):
            problems.append(f"raw/{start.folder} holds another start")
        if _time(record["began_at"]) < _time(before):
            problems.append(f"raw/{start.folder} began before the start ahead of it had ended")
        before = record["ended_at"]
    return problems


def _excluded_problems(protocol: Protocol, folder: Path) -> list[str]:
    place, problems = folder / "excluded", []
    names = sorted(p for p in place.iterdir()) if place.is_dir() else []
    if len(names) > protocol.max_excluded:
        problems.append(f"{len(names)} starts are excluded, {protocol.max_excluded} are allowed")
    for path in names:
        reason = path / "reason.json"
        if not reason.is_file():
            problems.append(f"excluded/{path.name} has no reason.json")
        elif files.read_json(reason)["rule"] not in protocol.exclusion:
            problems.append(f"excluded/{path.name}: its rule is not the protocol's")
    return problems


def differences(a: Any, b: Any, where: str = "summary.json") -> list[str]:
    """Where two JSON values differ; numbers may in their last digits."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{where}: {key} is in one only" for key in sorted(set(a) ^ set(b))]
        for key in sorted(set(a) & set(b)):
            found += differences(a[key], b[key], f"{where}: {key}")
        return found
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [
            line
            for i, pair in enumerate(zip(a, b, strict=True))
            for line in differences(*pair, f"{where}[{i}]")
        ]
    is_number = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    if is_number and math.isclose(a, b, rel_tol=_RELATIVE):
        return []
    # The reason repeats figures in words; the figures themselves are compared.
    if isinstance(a, str) and isinstance(b, str):
        number = r"\d+\.\d+(?:e-?\d+)?"
        if re.sub(number, "#", a) == re.sub(number, "#", b) and where.endswith(": reason"):
            seen, wanted = (list(map(float, re.findall(number, x))) for x in (a, b))
            if all(math.isclose(x, y, rel_tol=1e-3) for x, y in zip(seen, wanted, strict=True)):
                return []
    return [] if a == b and type(a) is type(b) else [f"{where}: says {a!r}, raw data say {b!r}"]


def _content_problems(folder: Path) -> Iterator[str]:
    protocol = protocols.read(folder)
    run = files.read_json(folder / "run.json")
    for path in sorted(folder.rglob("*" + files.PARTIAL)):
        yield f"{path.relative_to(folder).as_posix()} was never finished"
    yield from _protocol_problems(folder, run)
    yield from amendment_problems(folder)
    yield from _excluded_problems(protocol, folder)
    if absent := summary.missing(protocol, folder):
        yield from absent
        return
    yield from _start_problems(protocol, folder, run)
    said = files.read_json(folder / "summary.json")
    yield from differences(said, summary.summarize(protocol, folder))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    if not re.search(rf"\b{said['verdict']}\b", readme):
        yield f"README.md does not name the verdict, {said['verdict']}"


def verify(folder: Path) -> list[str]:
    """All problems of an evidence folder, most basic first. Empty: it holds."""
    problems = files.sum_problems(folder)
    try:
        problems += _content_problems(folder)
    except CliError as error:
        problems.append(error.message)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problems.append(f"cannot be read further: {type(error).__name__}: {error}")
    return problems
