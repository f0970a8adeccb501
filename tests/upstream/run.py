# SPDX-License-Identifier: Apache-2.0
"""`make conformance`: core's own Model Runner V2 tests on this device, against expected.toml.

    python -m tests.upstream.run [FILE ...] [--propose]

FILE: only these (`v1/worker/test_x.py`). --propose writes what was seen to build/upstream, in the
list's form, for a person to give the reasons. Exit code 1: the run and the list differ.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.upstream import adapt, expectations, fetch, hub, processes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "upstream"
_ABOUT_MRV2 = re.compile(
    r"\bvllm\.v1\.worker\.gpu(\.|\s+import\b|[\"'])|vllm\.v1\.worker import gpu\b"
)


def about_mrv2(tests: Path) -> list[str]:
    """Test files of core that name a module of Model Runner V2, relative to `tests`."""
    return [
        str(path.relative_to(tests))
        for path in sorted(tests.rglob("test_*.py"))
        if _ABOUT_MRV2.search(path.read_text(encoding="utf-8"))
    ]


def adapted(released: Path, names: Iterable[str]) -> Path:
    """A copy of core's `tests/` in which the named files are adapted; all changes go to a diff."""
    copy = BUILD / "adapted"
    shutil.rmtree(copy, ignore_errors=True)
    for part in fetch.PARTS:
        shutil.copytree(released / part, copy / part)
    (copy / "pytest.ini").write_text("[pytest]\naddopts = -ra\n", encoding="utf-8")
    hub.write_configurations(copy)
    lines: list[str] = []
    for name in names:
        path = copy / "tests" / name
        before = path.read_text(encoding="utf-8")
        try:
            after, _ = adapt.adapt(before)
        except adapt.RefusedError as error:
            raise adapt.RefusedError(f"{name}: {error}") from error
        path.write_text(after, encoding="utf-8")
        old, new = before.splitlines(), after.splitlines()
        lines += difflib.unified_diff(
            old, new, f"released/{name}", f"adapted/{name}", "", "", 0, ""
        )
    (BUILD / "adapted.diff").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return copy


def run(
    console: Console, copy: Path, names: list[str], skipped: list[str]
) -> dict[str, dict[str, str]]:
    """Run the files one after the other, each in a process of its own; outcomes by file and test.

    skipped: `file.py::function` of what is not to be started.
    """
    files = processes.Files(copy, BUILD / "record.jsonl", BUILD / "pytest.log", tuple(skipped))
    files.record.unlink(missing_ok=True)
    files.log.unlink(missing_ok=True)
    processes.preload()
    outcomes: dict[str, dict[str, str]] = {}
    for number, name in enumerate(names, start=1):
        began = time.monotonic()
        outcomes[name] = processes.run_file(files, name)
        ended = list(outcomes[name].values()).count(processes.ENDED)
        line = f"{number}/{len(names)} {name}: {len(outcomes[name])} tests"
        line += f", {time.monotonic() - began:.0f} s" + f", {ended} ended the process" * bool(ended)
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return outcomes


def propose(outcomes: dict[str, dict[str, str]]) -> str:
    """What was seen, in the list's form. A function whose parameters differ is given by case."""
    lines: list[str] = []
    for name, tests in outcomes.items():
        seen: dict[str, set[bool]] = {}
        for test, outcome in tests.items():
            seen.setdefault(test.partition("[")[0], set()).add(outcome == expectations.PASSED)
        groups: dict[bool, list[str]] = {True: [], False: []}
        for test, outcome in tests.items():
            function = test.partition("[")[0]
            passed = outcome == expectations.PASSED
            pattern = function if len(seen[function]) == 1 else test
            if pattern not in groups[passed]:
                groups[passed].append(pattern)
        lines += [f'[run."{name}"]', f"cases = {len(tests)}"]
        if groups[True]:
            lines.append(f"passes = {json.dumps(groups[True], indent=2)}")
        if groups[False]:
            lines.append(f"not_applicable.GIVE_A_REASON = {json.dumps(groups[False], indent=2)}")
        lines.append("")
    return "\n".join(lines)


def report(
    console: Console,
    files: list[expectations.File],
    outcomes: dict[str, dict[str, str]],
) -> int:
    """Print the summary, file by file, and all problems. Returns their number."""
    table = Table(title="core's own tests on this device", title_justify="left")
    table.add_column("file", overflow="fold")
    for column in ("passed", "not applicable", "problems"):
        table.add_column(column, justify="right")
    passed = not_applicable = 0
    problems: list[str] = []
    for file in files:
        tally = expectations.compare(file, outcomes.get(file.path, {}))
        passed += tally.passed
        not_applicable += tally.not_applicable
        problems += [f"{file.path}::{problem}" for problem in tally.problems]
        mark = f"[red]{len(tally.problems)}[/red]" if tally.problems else ""
        table.add_row(file.path, str(tally.passed), str(tally.not_applicable), mark)
    table.add_section()
    table.add_row(f"{len(files)} files", str(passed), str(not_applicable), str(len(problems)))
    console.print(table)
    for problem in problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    return len(problems)


def main() -> int:
    """0 where the run is what the list says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="only these (with --propose: any)")
    parser.add_argument("--propose", action="store_true")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        released = fetch.core_tests(BUILD)
        listed = expectations.load(HERE / "expected.toml")
        missing = expectations.unlisted(listed, about_mrv2(released / "tests"))
        files = [file for file in listed if file.reason is None]
        if arguments.files:
            names = arguments.files
            files = [file for file in files if file.path in names]
            unknown = set(names) - {file.path for file in files}
            if unknown and not arguments.propose:
                parser.error(f"not in expected.toml: {', '.join(sorted(unknown))}")
        else:
            names = [file.path for file in files]
        copy = adapted(released, names)
    except (fetch.FetchError, adapt.RefusedError, expectations.ListError) as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        return 2
    console.print(f"Running {len(names)} of core's test files; pytest's output: {BUILD}/pytest.log")
    skipped = [f"{file.path}::{function}" for file in files for function in file.not_started]
    outcomes = run(console, copy, names, skipped)
    if arguments.propose:
        (BUILD / "proposed.toml").write_text(propose(outcomes), encoding="utf-8")
    problems = report(console, files, outcomes)
    for name in missing:
        console.print(f"  {name}: about Model Runner V2, and not listed", soft_wrap=True)
    left_out = len(listed) - len([file for file in listed if file.reason is None])
    console.print(f"{left_out} files of core about Model Runner V2 are left out, with a reason.")
    return 1 if problems or missing else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # else libraries that were imported for the children say what they still hold
