# SPDX-License-Identifier: Apache-2.0
"""What every test needs: the emulated device on the loader path.

No fixtures of one part here: those belong to the part's own conftest.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
from collections import Counter, defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.helpers import session_findings

# At import: conftests below this one load the emulator.
FINDINGS = session_findings.watch()

HOW_TO = (
    "Run the tests on the emulated device: `make test`, or "
    "`vllm-ascend-mrv2 emulator run -- python -m pytest ...`."
)


OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", metavar="FILE", help="add the outcomes to this JSON, by file")


def _commit() -> str:
    """The checkout's, "" where there is none."""
    asked = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD")
    try:
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What the docs say of a core comes from here; see docs/results."""
    if not (name := config.getoption("--results")):
        return
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, ()):
            by_file[report.nodeid.partition("::")[0]][outcome] += 1
    path = Path(name)
    known = json.loads(path.read_text()) if path.is_file() else {}
    known["versions"] = {dist: version(dist) for dist in ("vllm", "torch", "torch-npu")}
    known["command"] = os.environ.get("RESULTS_OF", "")
    known["on"] = f"{datetime.now(UTC):%Y-%m-%d}"
    files = known.get("files", {}) | {file: dict(counts) for file, counts in by_file.items()}
    known["files"] = dict(sorted(files.items()))
    commits = known.get("commits", {}) | dict.fromkeys(by_file, _commit())
    known["commits"] = {file: commits[file] for file in known["files"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """End the run at once where every device test would fail, or would run on a real card."""
    if FINDINGS is not None:
        config.pluginmanager.register(FINDINGS)
    try:
        library = ctypes.CDLL("libascendcl.so")
    except OSError as error:
        pytest.exit(f"The CANN libraries are not on the loader path: {error}. {HOW_TO}", 4)
    if not hasattr(library, "emu_version"):
        pytest.exit(f"libascendcl.so is there but is not the emulator's. {HOW_TO}", 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kernel tests on one worker: core's kernels, which they ask, take seconds to start."""
    for item in items:
        if item.path.parent.name == "kernels":
            item.add_marker(pytest.mark.xdist_group("kernels"))


def pytest_collection_finish() -> None:
    """Leave torch and vLLM, imported by now, out of every later collection: it saves CPU time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """The interpreter's own end may collect everything: libraries count what is left as leaked."""
    gc.unfreeze()
