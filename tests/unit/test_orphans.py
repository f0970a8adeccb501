# SPDX-License-Identifier: Apache-2.0
"""Which processes end when the one that started them is killed, and that they do end.

Of real servers: tests/engine/test_killed_server.py, tests/parallel/test_slow_and_killed.py.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.processes import is_running
from vllm_ascend_mrv2.orphans import CORES_PROCESSES

LIMIT_S = 2
SOON_S = 20  # on a busy machine
# The main program starts its child as core does, and says its process id once it is watched.
PROGRAM = f"""
import multiprocessing, os, signal, sys, time
from vllm_ascend_mrv2 import engine_folder, orphans

orphans.ENDS_WITHIN_S = {LIMIT_S}
orphans.watch_parent()  # in the child while it is spawned, as when core is imported there

def run(how):
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), os.environ["VLLM_RPC_BASE_PATH"], flush=True)
    time.sleep(600)

if __name__ == "__main__":
    engine_folder.open_for_engines()
    name, how = sys.argv[1:]
    child = multiprocessing.get_context("spawn").Process(target=run, args=(how,), name=name)
    child.start()
    child.join()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a shorter name than pytest's: sockets lie there."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def orphan(short: Path, name: str, how: str = "as core") -> tuple[int, Path]:
    """A child of that name whose parent was killed, and the folder of its engines."""
    program = short / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, program, name, how],
        env={"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(short)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert Path(folder).is_dir()
        parent.kill()
    return int(pid), Path(folder)


def ends(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


@pytest.mark.parametrize("name", [f"{begin}0" for begin in CORES_PROCESSES])
def test_a_process_of_cores_ends_and_takes_the_folder_with_it(short: Path, name: str) -> None:
    pid, folder = orphan(short, name)
    assert ends(pid, SOON_S)
    assert not folder.exists()


def test_one_that_does_not_end_when_asked_is_killed(short: Path) -> None:
    pid, _ = orphan(short, "EngineCore", "stubborn")
    assert ends(pid, LIMIT_S + SOON_S)


def test_a_programs_own_child_outlives_it(short: Path) -> None:
    pid, folder = orphan(short, "SpawnProcess-1")
    try:
        assert not ends(pid, 2 * LIMIT_S)
        assert folder.is_dir()
    finally:
        os.kill(pid, signal.SIGKILL)


def names_in_core() -> set[str]:
    """Those that the installed core gives to the processes it starts, without their numbers."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    found = set()
    for file in Path(spec.origin).with_name("v1").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if ".Process(" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "Process":
                names = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
                texts = [node for name in names for node in ast.walk(name)]
                found |= {node.value for node in texts if isinstance(node, ast.Constant)}
    return found


def test_these_are_all_that_core_starts() -> None:
    names = names_in_core()
    assert all(name.startswith(CORES_PROCESSES) for name in names), names
    assert all(any(name.startswith(ours) for name in names) for ours in CORES_PROCESSES), names
