# SPDX-License-Identifier: Apache-2.0
"""A folder that holds, and every way in which one must be seen not to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.cli.evidence.conftest import close
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence.verify import verify
from vllm_ascend_mrv2.cli.main import cli

Make = Callable[..., Path]


@pytest.fixture
def folder(make_folder: Make) -> Path:
    """A closed folder."""
    made = make_folder()
    close(made)
    assert verify(made) == []
    return made


def _one_problem(folder: Path) -> str:
    problems = verify(folder)
    assert len(problems) == 1, problems
    return problems[0]


def test_the_command_says_the_verdict(folder: Path) -> None:
    shown = CliRunner().invoke(cli, ["evidence", "verify", str(folder)])
    assert shown.exit_code == 0
    assert "CONFIRMED: mean tpot is 0.8" in shown.output


def test_every_file_counts_to_the_byte(folder: Path) -> None:
    for relative in list(files.files(folder)):
        path = folder / relative
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        shown = CliRunner().invoke(cli, ["evidence", "verify", str(folder)])
        assert shown.exit_code == 1, relative
        assert f"{relative.as_posix()} has other content" in shown.output
        path.write_bytes(whole)


@pytest.mark.parametrize("byte", [b"\x0b", b"\x0c", b"\r", b"\x1c", b"\x85"])
def test_a_line_of_the_sums_ends_in_one_way(folder: Path, byte: bytes) -> None:
    sums = folder / "SHA256SUMS"
    lines = sums.read_bytes()
    end = lines.index(b"\n")
    sums.write_bytes(lines[:end] + byte + lines[end + 1 :])
    assert verify(folder)


def test_sha256sum_reads_the_sums(folder: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--quiet", files.SUMS], cwd=folder, check=False)
    assert done.returncode == 0


def test_an_added_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("x")
    assert _one_problem(folder) == "notes.txt is there, and not in SHA256SUMS"


def test_a_missing_start(folder: Path) -> None:
    shutil.rmtree(folder / "raw" / "05-quick")
    files.write_sums(folder)
    assert "raw/05-quick/requests.jsonl is missing" in verify(folder)


def test_a_tampered_summary_with_right_sums(folder: Path) -> None:
    path = folder / "summary.json"
    said = files.read_json(path)
    said["candidate_over_baseline"]["tpot"]["mean"]["ratio"] *= 0.99
    files.write_json(path, said)
    files.write_sums(folder)
    assert "summary.json: candidate_over_baseline: tpot: mean: ratio" in _one_problem(folder)


def test_a_tampered_verdict_with_right_sums(folder: Path) -> None:
    path = folder / "summary.json"
    path.write_text(path.read_text().replace("CONFIRMED", "INCONCLUSIVE"))
    (folder / "README.md").write_text("INCONCLUSIVE")
    files.write_sums(folder)
    assert "summary.json: verdict: says 'INCONCLUSIVE'" in _one_problem(folder)


def test_tampered_raw_data_with_right_sums(folder: Path) -> None:
    """Even summed up again: the start's own hashes do not fit."""
    path = folder / "raw" / "02-slow" / "requests.jsonl"
    path.write_text(path.read_text().replace('"arrival_us": 0', '"arrival_us": 1'))
    close(folder)
    assert _one_problem(folder) == "raw/02-slow/requests.jsonl is not what the run wrote"


def test_summarize_refuses_changed_raw_data(folder: Path) -> None:
    path = folder / "raw" / "02-slow" / "requests.jsonl"
    path.write_text(path.read_text().replace('"arrival_us": 0', '"arrival_us": 1'))
    shown = CliRunner().invoke(cli, ["evidence", "summarize", str(folder)])
    assert shown.exit_code == 1
    assert "were changed after they were summed up" in shown.output


def test_summarize_may_be_repeated_after_the_readme(folder: Path) -> None:
    (folder / "README.md").write_text("In the end: CONFIRMED.\n")
    assert verify(folder)
    shown = CliRunner().invoke(cli, ["evidence", "summarize", str(folder)])
    assert shown.exit_code == 0, shown.output
    assert verify(folder) == []


def test_a_protocol_changed_after_the_run(folder: Path) -> None:
    path = folder / "protocol.json"
    path.write_text(path.read_text().replace('"stop": "after all starts"', '"stop": "when good"'))
    close(folder)
    assert _one_problem(folder) == "protocol.json is not the one that was run"


def test_a_readme_that_says_something_else(folder: Path) -> None:
    (folder / "README.md").write_text("A great success.\n")
    files.write_sums(folder)
    assert _one_problem(folder) == "README.md does not name the verdict, CONFIRMED"


def test_starts_out_of_order(folder: Path) -> None:
    path = folder / "raw" / "06-slow" / "start.json"
    path.write_text(path.read_text().replace("T10:06:00", "T10:04:00"))
    files.write_sums(folder)
    assert "raw/06-slow began before the start ahead of it had ended" in _one_problem(folder)


def _amend(folder: Path, at: str, seen_data: object) -> list[str]:
    line = {"at": at, "seen_data": seen_data, "text": "the margin is explained"}
    (folder / "amendments.jsonl").write_text(json.dumps(line) + "\n")
    close(folder)
    return verify(folder)


def test_amendments_before_and_after_data(folder: Path) -> None:
    assert _amend(folder, "2026-01-02T09:00:00+00:00", False) == []
    assert files.read_json(folder / "summary.json")["amendments_after_data"] == 0
    assert _amend(folder, "2026-01-03T09:00:00+00:00", True) == []
    assert files.read_json(folder / "summary.json")["amendments_after_data"] == 1
    assert _amend(folder, "2026-01-03T09:00:00+00:00", False) == [
        "amendments.jsonl, line 1: marked as before seeing data, dated after the first data"
    ]


def test_an_amendment_without_a_mark(folder: Path) -> None:
    assert "needs at, seen_data" in _amend(folder, "2026-01-03T09:00:00+00:00", None)[0]


def test_exclusions_need_a_rule_of_the_protocol(folder: Path) -> None:
    place = folder / "excluded" / "01-03-slow"
    place.mkdir(parents=True)
    files.write_json(place / "reason.json", {"rule": "interrupted", "why": "kill"})
    close(folder)
    assert verify(folder) == []
    files.write_json(place / "reason.json", {"rule": "too slow", "why": "it was"})
    close(folder)
    assert _one_problem(folder) == "excluded/01-03-slow: its rule is not the protocol's"
