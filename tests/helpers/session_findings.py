# SPDX-License-Identifier: Apache-2.0
"""Under `--check=strict`, a finding of the order checker in any process fails its test.

The error that a finding is may be caught, and what a process ends with may never be asked for:
xdist ignores its workers, servers and engines end by signals. So every process, the test's own and
all that it starts, writes its findings into a folder that is looked into after each test.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

REPORT = "ASCEND_EMU_CHECK_REPORT"
# Of all sessions, by process: what has ended is removed by the next one, since a process may write
# as the very last thing that it does.
_FOLDERS = Path(tempfile.gettempdir(), f"ascend-findings-{os.getuid()}")


def _is_alive(process: str) -> bool:
    return Path("/proc", process).exists()


def _text(finding: dict[str, Any]) -> str:
    lines = [f"{finding['kind']}: {finding['message']}"]
    for operation in finding["operations"]:
        lines += [f"    {operation['name']} {operation['access']}"]
        lines += [f"        {frame}" for frame in operation["stack"]]
    return "\n".join(lines)


class SessionFindings:
    """A pytest plugin, of one process that runs tests."""

    def __init__(self) -> None:
        _FOLDERS.mkdir(mode=0o700, exist_ok=True)
        for left in _FOLDERS.iterdir():
            if not _is_alive(left.name):
                shutil.rmtree(left, ignore_errors=True)
        self._folder = _FOLDERS / str(os.getpid())
        self._folder.mkdir(exist_ok=True)
        self._seen: dict[Path, int] = {}
        os.environ[REPORT] = str(self._folder / "%p.json")

    def new(self) -> list[str]:
        """What was found since the last call, as text."""
        found: list[str] = []
        for report in sorted(self._folder.glob("*.json")):
            is_final = not _is_alive(report.stem)  # asked before it is read
            findings = json.loads(report.read_text())["findings"]
            found += [_text(finding) for finding in findings[self._seen.get(report, 0) :]]
            self._seen[report] = len(findings)
            if is_final:  # its number may come again
                report.unlink()
                del self._seen[report]
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Around all of it, fixtures of the session that end with this test included."""
        try:
            result = yield
        except BaseException as error:
            for text in self._after_a_test():
                error.add_note(text)
            raise
        if found := self._after_a_test():
            pytest.fail("\n".join(["the order checker found:", *found]), pytrace=False)
        return result

    def _after_a_test(self) -> list[str]:
        torch = sys.modules.get("torch")
        if torch is not None and torch.npu.is_initialized():
            with contextlib.suppress(RuntimeError):  # a finding's own, which is reported
                torch.npu.synchronize()  # else it would be found in the next test's time
        return self.new()


def watch() -> SessionFindings | None:
    """The plugin, in a session under strict. Call it before the emulator is loaded, which reads its
    variables then.
    """
    if os.environ.get("ASCEND_EMU_CHECK") != "strict":
        return None
    given = os.environ.get(REPORT)
    if given and not Path(given).is_relative_to(_FOLDERS):
        pytest.exit(
            f"{REPORT} (--check-report) is {given!r}, but under --check=strict the tests keep the "
            "findings of all processes themselves, and show them: leave it out.",
            4,
        )
    return SessionFindings()
