# SPDX-License-Identifier: Apache-2.0
"""The last words of an engine reach the process in front of it; with none, nothing fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_ascend_mrv2 import last_words

PLACE = last_words._PLACE
DIES = """
import os, signal
from vllm_ascend_mrv2.last_words import SAID
try:
    with SAID:
        raise RuntimeError({words!r})
finally:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(PLACE, raising=False)
    last_words.listen()
    yield
    os.close(int(Path(os.environ[PLACE]).name))


def dies(words: str) -> None:
    """An engine that is killed as soon as it has spoken."""
    subprocess.run([sys.executable, "-c", DIES.format(words=words)], timeout=60, check=False)


def test_the_first_error_is_heard(listening: None) -> None:
    assert last_words.heard() == ""
    dies("a step did not end")
    dies("the device is gone")  # what follows from it
    assert last_words.heard() == "RuntimeError: a step did not end"


def test_who_starts_another_server_listens_for_it(listening: None) -> None:
    """A process beside this one hears the same; one without a live place makes its own."""
    mine = os.environ[PLACE]
    last_words.listen()
    assert os.environ[PLACE] == mine
    os.environ[PLACE] = "/proc/0/fd/3"
    last_words.listen()
    assert Path(os.environ[PLACE]).parts[2] == str(os.getpid())


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (None, "/proc/0/fd/3"):
        monkeypatch.delenv(PLACE, raising=False)
        if place is not None:
            monkeypatch.setenv(PLACE, place)
        with pytest.raises(ValueError, match="as it was"), last_words.SAID:
            raise ValueError("as it was")
        assert last_words.heard() == ""


def test_the_end_of_a_process_is_no_error(listening: None) -> None:
    with pytest.raises(SystemExit), last_words.SAID:
        raise SystemExit(0)
    assert last_words.heard() == ""
