# SPDX-License-Identifier: Apache-2.0
"""expected.toml: which of core's tests pass on this device, and why the others cannot apply.

Reads the list and compares a run with it. Runs nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PASSED = "passed"
MODULE = (
    "(the module)"  # stands for the tests of a file that could not be loaded, or skipped itself
)


class ListError(ValueError):
    """The list contradicts itself."""


@dataclass(frozen=True)
class Entry:
    """Tests of a file that share an expectation. reason: None for those that pass.

    pattern: a test's name, which stands for all its parameters, or a name with parameters in
    brackets, in which `*` stands for anything and which wins over the bare name.
    """

    pattern: str
    reason: str | None

    def matches(self, test: str) -> bool:
        """test: what follows `file.py::`."""
        if "[" not in self.pattern:
            return test.partition("[")[0] == self.pattern
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", ".*"), test) is not None


@dataclass(frozen=True)
class File:
    """What is expected of one of core's files: entries, or a reason why none of it can run.

    cases: tests, each set of parameters counted. not_started: tests and functions whose reason is
    one for which a run would tell nothing.
    """

    path: str
    entries: tuple[Entry, ...]
    cases: int
    not_started: tuple[str, ...] = ()
    reason: str | None = None

    def entry(self, test: str) -> Entry | None:
        """The entry for a test, the one with brackets first."""
        found = [entry for entry in self.entries if entry.matches(test)]
        return max(found, key=lambda entry: "[" in entry.pattern, default=None)


@dataclass
class Tally:
    """One file of a run against the list."""

    passed: int = 0
    not_applicable: int = 0
    problems: list[str] = field(default_factory=list)


def load(path: Path) -> list[File]:
    """The list's files, in its order. Raises ListError."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    reasons: Mapping[str, str] = document["reasons"]

    def reason(key: str, where: str) -> str:
        if key not in reasons:
            raise ListError(f"{where}: no reason is named {key!r}.")
        return reasons[key]

    files = [
        File(
            path=name,
            entries=(
                *(Entry(pattern, None) for pattern in table.get("passes", ())),
                *(
                    Entry(pattern, reason(key, name))
                    for key, patterns in table.get("not_applicable", {}).items()
                    for pattern in patterns
                ),
            ),
            cases=table["cases"],
            not_started=tuple(
                pattern
                for key in document["not_started"]
                for pattern in table.get("not_applicable", {}).get(key, ())
            ),
        )
        for name, table in document["run"].items()
    ]
    files += [
        File(name, (), 0, reason=reason(key, name))
        for key, names in document.get("left_out", {}).items()
        for name in names
    ]
    names = [file.path for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ListError(f"listed twice: {', '.join(twice)}")
    return files


def compare(file: File, outcomes: Mapping[str, str]) -> Tally:
    """outcomes: test (what follows `file.py::`) -> `passed`, `failed`, `skipped`, ..."""
    tally = Tally()
    used: set[Entry] = set()
    for test, outcome in outcomes.items():
        entry = file.entry(test)
        if entry is None:
            tally.problems.append(f"{test}: {outcome}, and not listed")
            continue
        used.add(entry)
        if entry.reason is None and outcome != PASSED:
            tally.problems.append(f"{test}: {outcome}, listed as passing")
        elif entry.reason is not None and outcome == PASSED:
            tally.problems.append(f"{test}: passed, listed as not applicable")
        elif entry.reason is None:
            tally.passed += 1
        else:
            tally.not_applicable += 1
    unused = [entry.pattern for entry in file.entries if entry not in used]
    tally.problems += [f"{pattern}: listed, and no such test ran" for pattern in unused]
    if len(outcomes) != file.cases:
        tally.problems.append(f"{len(outcomes)} test cases, {file.cases} listed")
    return tally


def unlisted(files: Iterable[File], found: Iterable[str]) -> list[str]:
    """Core's files about Model Runner V2 that the list does not mention."""
    return sorted(set(found) - {file.path for file in files})
