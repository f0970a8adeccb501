# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between ranks is an error that says what and where, on every rank, and nothing is
left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.device.hccl import programs
from tests.device.hccl.bare import MISMATCHES
from tests.device.hccl.world import Rank, World

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.xdist_group("hccl")

PARA, NOT_SUPPORT, TIMEOUT, REMOTE = 1, 5, 9, 21  # HcclResult
NOT_SIGNALLED, INCONSISTENT = 507048, 507049


def run(
    scenario: str, folder: Path, ranks: int = 2, lost: int = -1, **environment: str
) -> list[Any]:
    """What each rank returned; None for one that is to be `lost`."""
    command = [sys.executable, "-m", "tests.device.hccl.bare"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder), scenario],
            cwd=ROOT,
            env={**os.environ, "ASCEND_EMU_DEVICES": "4", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    results: list[Any] = []
    for rank, process in enumerate(processes):
        out, err = process.communicate(timeout=120)
        if rank == lost:
            assert process.returncode == -signal.SIGKILL, err
            results.append(None)
        else:
            assert process.returncode == 0, err
            results.append(json.loads(out))
    return results


def test_a_killed_rank(tmp_path: Path) -> None:
    seen = run("killed", tmp_path, lost=1)[0]
    assert seen["code"] == NOT_SIGNALLED
    assert "EI0002: HcclAllReduce of int32 [4], collective 2, rank 0 of 2" in seen["message"]
    assert "of rank 1 has ended" in seen["message"]
    assert seen["async"][0] == REMOTE
    assert "of rank 1 has ended" in seen["async"][1]
    assert seen["seconds"] < 10
    assert not [file for file in Path("/dev/shm").iterdir() if "hccl" in file.name]
    assert f"emulated-hccl-{seen['process']}-" not in Path("/proc/net/unix").read_text()


def test_a_slow_rank_loses_nothing_and_who_waits_sleeps(tmp_path: Path) -> None:
    seen = run("slow", tmp_path, HCCL_EXEC_TIMEOUT="60")
    assert [each["result"] for each in seen] == [[0, ""]] * 2
    assert seen[0]["cpu_seconds"] < 0.3


def test_a_rank_that_comes_too_late(tmp_path: Path) -> None:
    (code, early), (late_code, late) = run("late", tmp_path, HCCL_EXEC_TIMEOUT="1")
    assert (code, late_code) == (NOT_SIGNALLED, NOT_SIGNALLED)
    assert "1 s have passed (HCCL_EXEC_TIMEOUT) without rank 1" in early
    assert "rank 0 has failed: EI0002" in late


def test_ranks_that_ask_for_different_things(tmp_path: Path) -> None:
    first, second = run("mismatches", tmp_path)
    for name in MISMATCHES:
        parameter = name.removesuffix(" of a message")
        for code, said, async_error in (first[name], second[name]):
            # A sender hears it from its receiver.
            assert code == INCONSISTENT or "rank 1 has failed: EI0005" in said, said
            assert "EI0005" in said, said
            assert f"{parameter} is " in said, said
            assert async_error in (PARA, REMOTE)


def test_a_call_that_cannot_be(tmp_path: Path) -> None:
    for seen in run("refused", tmp_path):
        assert seen["reduce uint8"][0] == NOT_SUPPORT
        assert "does not reduce uint8" in seen["reduce uint8"][1]
        assert seen["unknown type"] == [PARA, "HcclAllReduce: unknown data type 99"]
        assert seen["root"][0] == PARA
        assert "root is 2, the communicator has 2 ranks" in seen["root"][1]
        assert seen["no communicator"][0] == PARA


def test_ranks_that_never_come(tmp_path: Path) -> None:
    (code, said), (other_code, _) = run("incomplete", tmp_path, HCCL_CONNECT_TIMEOUT="1")
    assert code == TIMEOUT
    assert "1 s have passed (HCCL_CONNECT_TIMEOUT)" in said
    assert "2" in said.rpartition("these have not come: ")[2]
    assert other_code in (TIMEOUT, REMOTE)  # the first to give up may have been the server


def test_ranks_that_contradict_each_other(tmp_path: Path) -> None:
    for (code, twice), (other_code, sizes) in run("contradiction", tmp_path):
        assert (code, other_code) == (PARA, PARA)
        assert "there are two of rank 0" in twice
        assert "says that there are" in sizes


def _ends(rank: Rank) -> torch.Tensor | None:
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return programs.all_reduce(rank, "sum", torch.float32, 8)


def test_torch_says_that_a_rank_was_lost() -> None:
    """ProcessGroupHCCL's watchdog may be quicker than the caller: it takes the process down."""
    with World([[0], [1]]) as world:
        world.run(programs.barrier)
        (is_good, said), (_, gone) = world.outcomes(_ends)
    assert not is_good
    assert gone == "the process ended"
    assert "of rank 1 has ended" in said or said == "the process ended"
