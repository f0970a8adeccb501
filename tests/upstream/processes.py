# SPDX-License-Identifier: Apache-2.0
"""A process for each of core's test files, forked from one that has imported torch and vLLM.

What a test leaves behind, or that it ends its process, is then of no consequence to other files.
The parent never uses a device, which does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.upstream import expectations

HERE = Path(__file__).resolve().parent
TEST_TIMEOUT_S = 300
# Nothing began or ended for so long: a test hangs where Python's own timeout does not reach it.
STALL_S = TEST_TIMEOUT_S + 120
ENDED = "ended the process"
_EXIT_CODES = (0, 1, 5)  # pytest's: all passed, some failed, none was there


@dataclass(frozen=True)
class Files:
    """Where a run of core's tests happens.

    copy: holds their `tests` and `pytest.ini`. record: see conformance_record. log: pytest's output
    is appended to it. skipped: `file.py::function` of what is not to be started. plugins: of
    pytest, beside this file.
    """

    copy: Path
    record: Path
    log: Path
    skipped: tuple[str, ...]
    plugins: tuple[str, ...] = ("conformance_record", "conformance_plugin")


def read_record(record: Path) -> tuple[dict[str, dict[str, str]], str | None]:
    """Outcomes by file and test, and the test that began and did not end."""
    outcomes: dict[str, dict[str, str]] = {}
    running: str | None = None
    for line in record.read_text(encoding="utf-8").splitlines() if record.is_file() else ():
        entry = json.loads(line)
        if "began" in entry:
            running = entry["began"]
        elif "ended" in entry:
            running = None
        else:
            name, _, test = entry["test"].partition("::")
            test = test or expectations.MODULE
            tests = outcomes.setdefault(name, {})
            # A test that passed and whose teardown failed has failed.
            if tests.get(test, expectations.PASSED) == expectations.PASSED:
                tests[test] = entry["outcome"]
    return outcomes, running


def preload() -> None:
    """Import in this process what every file imports, and keep its children from copying it."""
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import vllm.v1.worker.gpu.model_runner  # noqa: F401

    gc.collect()
    gc.freeze()


def run_file(files: Files, name: str) -> dict[str, str]:
    """Outcomes of one file's tests.

    A test that ends the process has the outcome ENDED, and those after it run in another process;
    where none was running, the module has it.
    """
    while True:
        tests = read_record(files.record)[0].get(name, {})
        deselected = [word for test in tests for word in ("--deselect", f"tests/{name}::{test}")]
        code = _run_child(files, [*deselected, f"tests/{name}"])
        outcomes, running = read_record(files.record)
        if running is None and code in _EXIT_CODES:
            return outcomes.get(name, {})
        entry = {"test": running or name, "outcome": ENDED, "text": f"exit code {code}"}
        with files.record.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n" + json.dumps({"ended": running}) + "\n")
        if running is None:
            return read_record(files.record)[0][name]


def _run_child(files: Files, arguments: Iterable[str]) -> int:
    """pytest on these arguments in a child. Returns its exit code, negative for a signal."""
    sys.stdout.flush()  # else the child would write it too
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become_pytest(files, list(arguments))
    progress: Any = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        size = files.record.stat().st_size if files.record.is_file() else 0
        if progress is None or size != progress[0]:
            progress = size, time.monotonic()
        elif time.monotonic() - progress[1] > STALL_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.1)


def _become_pytest(files: Files, arguments: list[str]) -> NoReturn:
    code = 70
    try:
        # Where memory runs out, the system is to end this process and not another.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        with files.log.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.chdir(files.copy)
        os.environ.update(
            CONFORMANCE_RECORD=str(files.record),
            CONFORMANCE_SKIP=json.dumps(files.skipped),
            PYTHONDONTWRITEBYTECODE="1",
            HF_HUB_OFFLINE="1",
        )
        # `tests` is core's from here on, in what the tests start too.
        for module in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[module]
        sys.path[:0] = [str(files.copy), str(HERE)]
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(files.copy), str(HERE), os.environ.get("PYTHONPATH")])
        )
        code = _pytest([*(f"-p{plugin}" for plugin in files.plugins), *arguments])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # not through what the parent registered for its own end


def _pytest(arguments: list[str]) -> int:
    import pytest

    options = ["-c", "pytest.ini", "--rootdir", ".", "-q", "--tb=short"]
    options += ["-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", "--timeout", str(TEST_TIMEOUT_S)]
    return int(pytest.main([*options, *arguments]))
