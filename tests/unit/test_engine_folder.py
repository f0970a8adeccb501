# SPDX-License-Identifier: Apache-2.0
"""The folder of an engine's processes: its owner's, gone with it, short enough, or the user's.

That nothing is left of a real server: tests/engine/test_shutdown.py, tests/parallel.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = """
import os, pathlib, sys
from vllm_ascend_mrv2 import engine_folder
engine_folder.open_for_engines()
engine_folder.open_for_engines()
if os.fork() == 0:
    sys.exit()  # a child's end does not take it away
os.wait()
met = pathlib.Path(os.environ["TMPDIR"], "where-ranks-meet")
met.touch()
metrics = pathlib.Path(os.environ["TMPDIR"], "metrics")
metrics.mkdir()
(metrics / "counter").touch()
for path in (met, met, metrics):
    engine_folder.goes_too(path)
chosen = os.environ.get("VLLM_RPC_BASE_PATH", "")
if chosen:
    pathlib.Path(chosen, "socket").touch()
print(chosen, oct(os.stat(chosen or ".").st_mode & 0o777))
"""


# Of what core has put beside a folder that is not ours.
STAYS = {"where-ranks-meet", "metrics", "counter"}


def chosen(folder: Path, **environment: str) -> tuple[str, str]:
    """The folder that a process chooses which has `folder` for its temporary files; its mode."""
    path, _, mode = run(SCRIPT, folder, **environment).rpartition(" ")
    return path, mode


def run(script: str, folder: Path, **environment: str) -> str:
    """What it prints, with `folder` for its temporary files."""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a shorter name than pytest's."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def test_it_is_the_owners_and_goes_with_the_process(short: Path) -> None:
    path, mode = chosen(short)
    assert Path(path).parent == short
    assert mode == "0o700"
    assert not list(short.iterdir())


def test_where_a_path_is_too_long_for_a_socket_core_chooses(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 70)
    folder.mkdir()
    assert chosen(folder)[0] == ""
    assert {file.name for file in folder.rglob("*")} == STAYS


def test_what_the_user_has_chosen_stays(short: Path) -> None:
    mine = short / "mine"
    mine.mkdir()
    assert chosen(short, VLLM_RPC_BASE_PATH=str(mine))[0] == str(mine)
    assert {file.name for file in short.rglob("*")} == STAYS | {"mine", "socket"}


def test_what_the_user_has_chosen_for_a_program_that_an_engine_starts(short: Path) -> None:
    mine, engines = short / "mine", short / "engines"
    mine.mkdir()
    other = {"_VLLM_ASCEND_MRV2_ENGINE_FOLDER": str(engines), "VLLM_RPC_BASE_PATH": str(mine)}
    assert chosen(short, **other)[0] == str(mine)


def test_a_program_that_is_started_has_its_own(short: Path) -> None:
    """It may outlive the one that has started it, which takes its folder away."""
    started = f"""
import os, subprocess, sys
from vllm_ascend_mrv2 import engine_folder
engine_folder.open_for_engines()
mine = os.environ["VLLM_RPC_BASE_PATH"]
ran = subprocess.run([sys.executable, "-c", {SCRIPT!r}], capture_output=True, text=True, check=True)
print(mine, ran.stdout.split()[0], os.path.isdir(mine))
"""
    mine, other, is_there = run(started, short).split()
    assert mine != other
    assert is_there == "True"
    assert not list(short.glob("vllm-*"))


def test_a_process_of_the_engine_has_that_of_its_parent(short: Path) -> None:
    spawned = """
import multiprocessing, os
from vllm_ascend_mrv2 import engine_folder

def say():
    engine_folder.open_for_engines()
    print(os.environ["VLLM_RPC_BASE_PATH"], flush=True)

if __name__ == "__main__":
    engine_folder.open_for_engines()
    say()
    child = multiprocessing.get_context("spawn").Process(target=say)
    child.start()
    child.join()
    say()
"""
    (short / "program.py").write_text(spawned)
    said = run(
        f"import runpy; runpy.run_path({str(short / 'program.py')!r}, run_name='__main__')", short
    )
    assert len(said.split()) == 3
    assert len(set(said.split())) == 1
