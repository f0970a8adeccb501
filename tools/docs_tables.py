# SPDX-License-Identifier: Apache-2.0
"""Puts what code, data and tests know into the pages of docs/; `make docs` runs it first.

A page has `<!-- table: NAME -->` before a table of TABLES, and `<!-- end of table -->` behind it:
what is between is written anew. The pages are read as files, too, so that it stays in them; a test
compares. Imports neither torch nor vllm.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed for its docs

from vllm_ascend_mrv2 import envs  # noqa: E402
from vllm_ascend_mrv2.compat import differences, pins  # noqa: E402
from vllm_ascend_mrv2.support import REFUSALS, SUPPORTED_DTYPES  # noqa: E402

RESULTS = ROOT / "docs" / "results"
_END = "<!-- end of table -->"
_PLACE = re.compile(rf"^(<!-- table: (.+?) -->)$.*?^{_END}$", re.MULTILINE | re.DOTALL)
_MEANING = {
    "verified": "the tests pass on it",
    "static": "it has every name that the plugin relies on; its engine tests have not all run",
    "differs": "names that the plugin relies on are not there",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def switches() -> str:
    """The plugin's environment variables, of envs.py."""
    return table(
        ("variable", "default", "values", "meaning"),
        (
            (_code(s.name), _code(s.default), " ".join(map(_code, s.values)), s.meaning)
            for s in envs.SWITCHES
        ),
    )


def _readme_rows(first_cell: str) -> list[str]:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if re.match(rf"\| {first_cell}", line)]
    if not found:
        raise ValueError(f"the README has no table row that begins with {first_cell}")
    return found


def emulator_switches() -> str:
    """The emulated device's, of the README, which a test compares with the device's own source."""
    head = "| variable | default | meaning |\n| --- | --- | --- |\n"
    return head + "\n".join(_readme_rows(r"`ASCEND_EMU_\w+`"))


def features() -> str:
    """What is served, of the README, which a test compares with the plugin's refusals."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    first = lines.index("| feature | state |")
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    # Links are relative to the checkout's root there, and to this folder here.
    return "\n".join(lines[first:last]).replace("](docs/", "](")


def refusals() -> str:
    """What is refused, why, and what to do instead, of support.py."""
    return table(("refused", "why", "instead"), ((r.feature, r.why, r.instead) for r in REFUSALS))


def dtypes() -> str:
    """The dtypes that are served, as one line."""
    return f"Dtypes: {', '.join(SUPPORTED_DTYPES)}."


def _results(core: str) -> tuple[str, str]:
    """What the engine tests gave on that core: in words; the command, its date, our commit."""
    path = RESULTS / f"core-{core}.json"
    if not path.is_file():
        return "", ""
    data = json.loads(path.read_text(encoding="utf-8"))
    total: Counter[str] = sum((Counter(counts) for counts in data["files"].values()), Counter())
    words = ", ".join(f"{count} {outcome}" for outcome, count in total.items())
    commits = ", ".join(dict.fromkeys(data["commits"].values()))
    run = f"`{data['command']}`, {data['on']}, at {commits}"
    return f"{words} in {len(data['files'])} files", run


def cores() -> str:
    """Every core of compat/pins.toml, how it stands, and what its tests gave."""
    rows = []
    for pin in pins.cores():
        stands = f"{pin.status}: {_MEANING[pin.status]}"
        tests, run = _results(pin.vllm)
        rows.append((f"vLLM {pin.vllm}", pin.torch, stands, tests or pin.not_run, run))
    return table(("core", "torch, torch-npu", "stands", "engine tests", "command"), rows)


def core_results() -> str:
    """The engine tests by file, for each core that has results."""
    known = {
        pin.vllm: json.loads(path.read_text(encoding="utf-8"))["files"]
        for pin in pins.cores()
        if (path := RESULTS / f"core-{pin.vllm}.json").is_file()
    }
    files = sorted({file for results in known.values() for file in results})

    def cell(core: str, file: str) -> str:
        counts = known[core].get(file, {})
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "not run"

    rows = ((f"`{file}`", *(cell(core, file) for core in known)) for file in files)
    return table(("file", *known), rows)


def core_differences() -> str:
    """What other cores have otherwise, of compat/differences.py."""
    return table(
        ("cores", "what", "served by", "goes when"),
        ((f"`{d.cores}`", d.reason, f"`{d.module}`", d.goes_when) for d in differences.ALL),
    )


def conformance() -> str:
    """How many of core's own tests pass here, and why the others cannot apply."""
    text = (ROOT / "tests" / "upstream" / "expected.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = tomllib.loads(text)
    cases = sum(run["cases"] for run in data["run"].values())
    head = f"{cases} cases in {len(data['run'])} files of core's tests are accounted for.\n\n"
    return head + table(("reason", "why a test cannot apply"), sorted(data["reasons"].items()))


TABLES: dict[str, Callable[[], str]] = {
    "switches": switches,
    "emulator-switches": emulator_switches,
    "features": features,
    "refusals": refusals,
    "dtypes": dtypes,
    "cores": cores,
    "core-results": core_results,
    "core-differences": core_differences,
    "conformance": conformance,
}


def refreshed(page: str) -> str:
    """The page with its tables as they are now. Raises KeyError for a table that is not known."""
    return _PLACE.sub(lambda place: f"{place[1]}\n\n{TABLES[place[2]]()}\n\n{_END}", page)


if __name__ == "__main__":
    for path in sorted((ROOT / "docs").glob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := refreshed(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: its tables are now as code and results have them")
