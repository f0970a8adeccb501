# SPDX-License-Identifier: Apache-2.0
"""A session of tests under strict: a finding fails the test in whose time it was made, wherever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.hazards.test_exit import RACE
from tests.helpers.session_findings import REPORT

ROOT = Path(__file__).resolve().parents[3]
# Nothing here looks at what a race is in: its error is caught, its process killed.
TESTS = f"""
import os, signal, subprocess, sys, time
import pytest

RACE = {RACE!r}
CATCHES = RACE + "acl.aclrtSynchronizeDevice()\\n"


def run(script):
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_a_first_good_one():
    pass


def test_child_that_nobody_asks_how_it_ended():
    run(RACE).wait()


def test_child_that_is_killed():
    child = run(CATCHES + "print('found', flush=True)\\nimport time; time.sleep(100)")
    assert child.stdout.readline() == "found\\n"
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_own_process():
    import ctypes

    exec(RACE, {{}})
    ctypes.CDLL("libascendcl.so").aclrtSynchronizeDevice()


@pytest.fixture(scope="session")
def server():
    yield
    run(RACE).wait()


def test_good_one_with_findings_before_it():
    pass


def test_fixture_of_the_session(server):
    pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one", "xdist"])
def test_a_finding_anywhere_fails_its_test(tmp_path: Path, workers: tuple[str, ...]) -> None:
    mark = 'pytestmark = pytest.mark.xdist_group("one")\n'
    (tmp_path / "test_with_races.py").write_text(TESTS + mark)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != REPORT and not name.startswith("PYTEST_")
    }
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-v", *workers),
            *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)),
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**environment, "ASCEND_EMU_CHECK": "strict"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    failed = set(re.findall(r"^ERROR .*::(\w+)", ran.stdout, re.MULTILINE))
    assert failed == {
        "test_child_that_nobody_asks_how_it_ended",
        "test_child_that_is_killed",
        "test_own_process",
        "test_fixture_of_the_session",
    }, ran.stdout + ran.stderr
    assert ran.returncode == 1
    assert ran.stdout.count("the order checker found:") >= 4
    assert "6 passed" in ran.stdout
