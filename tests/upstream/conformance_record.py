# SPDX-License-Identifier: Apache-2.0
"""pytest plugin for core's own test files: what is not run, and a record of the results.

Loaded by name (`-p conformance_record`), like conformance_plugin. CONFORMANCE_RECORD names the file
to which results are appended, one JSON object a line, at once: a test that ends the process is the
last one that began.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_FOLDER = "tests/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the list says is not to be run: CONFORMANCE_SKIP, a JSON list of their names.

    And use core's switch for leaving out a garbage collection after each test, most of their time.
    """
    skipped = set(json.loads(os.environ.get("CONFORMANCE_SKIP", "[]")))
    for item in items:
        item.add_marker(pytest.mark.skip_global_cleanup)
        name = _name(item.nodeid)
        if name in skipped or name.partition("[")[0] in skipped:
            item.add_marker(pytest.mark.skip(reason="not run, see expected.toml"))


class Recorder:
    """Writes the beginning and the outcome of each test."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, **entry: Any) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that could not be loaded, or that skipped itself, has no tests of its own."""
        if report.nodeid.endswith(".py") and not report.passed:
            self._write(test=_name(report.nodeid), outcome=report.outcome, text=_reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(began=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The call's outcome, or that of a setup or teardown which did not pass."""
        if report.when == "call" or not report.passed:
            expected_failure = hasattr(report, "wasxfail")
            outcome = "xfailed" if expected_failure else report.outcome
            self._write(test=_name(report.nodeid), outcome=outcome, text=_reason(report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(ended=_name(nodeid))


def _name(nodeid: str) -> str:
    return nodeid.removeprefix(_FOLDER)


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:600]


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("CONFORMANCE_RECORD"):
        config.pluginmanager.register(Recorder(Path(path)))
