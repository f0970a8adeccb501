# SPDX-License-Identifier: Apache-2.0
"""`evidence run` as a process: order, refusals, and what is left when it is killed.

Its servers and clients are real processes of a small program in vLLM's place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import is_running
from tests.unit.cli.evidence.conftest import NAME
from vllm_ascend_mrv2.cli.evidence import folder as files
from vllm_ascend_mrv2.cli.evidence import protocol as protocols
from vllm_ascend_mrv2.cli.evidence import provenance, runner
from vllm_ascend_mrv2.cli.evidence.verify import verify

STANDIN = Path(__file__).with_name("standin_vllm.py")
RUN = """
import sys
from pathlib import Path
from vllm_ascend_mrv2.cli.evidence import commands, runner
program = Path(sys.argv.pop(1))
runner.default_vllm = lambda: program
commands.evidence(["run", *sys.argv[1:]])
"""
COUNT = """
import json, os, sys
side = os.environ["STANDIN_SIDE"]
rows = [{"per_step": {"d2h": 1.0 if side == "quick" else 2.0}}]
open(sys.argv[1] + "/steps.json", "w").write(json.dumps(rows))
"""


class Case:
    """A protocol for this machine in a git repository, and ways to run it."""

    def __init__(self, root: Path, protocol: dict[str, Any]) -> None:
        self.root, self.folder, self.model = root, root / NAME, root / "model"
        self.journal = root / "journal"
        self.folder.mkdir()
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        (root / "count.py").write_text(COUNT)
        cpus = sorted(os.sched_getaffinity(0))
        protocol["stack"] = provenance.stack(["click"])
        protocol["device"] = provenance.device()
        protocol["model"]["sha256"] = provenance.folder_digest(self.model)
        machine = provenance.machine()
        protocol["machine"] = {key: machine[key] for key in ("cpu_model", "cpus")}
        protocol["affinity"] = {"server": [cpus[0]], "client": [cpus[-1]]}
        protocol["environment"] = {
            "allow": ["PATH", "HOME"],
            "set": {"STANDIN_JOURNAL": str(self.journal)},
        }
        for variant, tpot in zip(protocol["variants"], ("0.1", "0.2"), strict=True):
            variant["environment"] = {"STANDIN_SIDE": variant["name"], "STANDIN_TPOT_S": tpot}
        protocol["mechanism"]["command"] = ["{python}", str(root / "count.py"), "{out}"]
        self.protocol = protocol
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(["git", "-C", str(self.root), *who, *arguments], check=True)

    def write(self, *, commit: bool = True) -> None:
        files.write_json(self.folder / "protocol.json", self.protocol)
        if commit:
            self.git("add", str(self.folder / "protocol.json"))
            self.git("commit", "--quiet", "--message", "protocol")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RUN, str(STANDIN), str(self.folder)]
        return subprocess.Popen(
            [*command, "--model", str(self.model), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def servers(self) -> list[list[str]]:
        """pid, side and CPUs of each server that began, in order."""
        lines = self.journal.read_text().splitlines() if self.journal.is_file() else []
        return [line.split(maxsplit=3)[1:] for line in lines if line.startswith("begin")]


@pytest.fixture
def case(tmp_path: Path, protocol_json: dict[str, Any]) -> Case:
    return Case(tmp_path, protocol_json)


def _wait(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_whole_run(case: Case) -> None:
    case.write()
    code, output = case.run()
    assert code == 0, output
    sides = [side for _, side, _ in case.servers()]
    assert sides == [s.variant for s in protocols.read(case.folder).schedule()]
    assert {cpus for _, _, cpus in case.servers()} == {str([min(os.sched_getaffinity(0))])}
    assert not any(is_running(int(pid)) for pid, _, _ in case.servers())
    made = files.read_json(case.folder / "summary.json")
    assert made["verdict"] == "CONFIRMED"
    assert made["candidate_over_baseline"]["tpot"]["mean"]["ratio"] == pytest.approx(0.5)
    assert made["starts"][0]["engine_steps"] == 12
    log = (case.folder / "raw" / "01-quick" / "server.log").read_text()
    assert log == "serving <model> from <home>\n"
    (case.folder / "README.md").write_text("CONFIRMED")
    files.write_sums(case.folder)
    assert verify(case.folder) == []
    code, output = case.run()
    assert code == 1
    assert "is complete" in output


def test_killed_and_resumed(case: Case) -> None:
    """SIGKILL, which nothing can catch: the server ends, and the start is not taken for whole."""
    case.protocol["environment"]["set"]["STANDIN_CLIENT_WAIT_S"] = "0.5"
    case.write()
    process = case.start()
    partial = case.folder / "raw" / "02-slow.partial"
    _wait(lambda: len(case.servers()) == 2 and (partial / "client.log").exists())
    process.kill()
    process.communicate()
    _wait(lambda: not any(is_running(int(pid)) for pid, _, _ in case.servers()))
    assert not (case.folder / "summary.json").exists()
    assert "raw/02-slow.partial was never finished" in verify(case.folder)

    code, output = case.run()
    assert code == 0, output
    assert [s for _, s, _ in case.servers()][:4] == ["quick", "slow", "slow", "slow"]
    excluded = case.folder / "excluded" / "01-02-slow"
    assert files.read_json(excluded / "reason.json")["rule"] == "interrupted"
    assert files.read_json(case.folder / "summary.json")["excluded_starts"] == ["01-02-slow"]
    (case.folder / "README.md").write_text("CONFIRMED")
    files.write_sums(case.folder)
    assert verify(case.folder) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server(case: Case, how: signal.Signals) -> None:
    case.protocol["environment"]["set"]["STANDIN_CLIENT_WAIT_S"] = "20"
    case.write()
    process = case.start()
    log = case.folder / "raw" / "01-quick.partial" / "client.log"
    _wait(lambda: len(case.servers()) == 1 and log.exists())
    process.send_signal(how)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert not is_running(int(case.servers()[0][0]))
    assert not (case.folder / "raw" / "01-quick").exists()


def test_a_server_that_does_not_start_is_put_aside_as_often_as_allowed(case: Case) -> None:
    case.protocol["environment"]["set"]["STANDIN_FAIL_ONCE"] = str(case.root / "mark")
    case.write()
    process = case.start()
    _wait(lambda: len(case.servers()) == 1)
    process.terminate()
    process.communicate(timeout=20)
    reason = files.read_json(case.folder / "excluded" / "01-01-quick" / "reason.json")
    assert reason["rule"] == "server_start"
    assert reason["why"] == "ended with exit code 1"


def test_no_more_exclusions_than_the_protocol_allows(case: Case) -> None:
    case.protocol["environment"]["set"]["STANDIN_FAIL_ONCE"] = str(case.root / "mark")
    case.protocol["max_excluded"] = 0
    case.write()
    code, output = case.run()
    assert code == 1
    assert "the protocol lets no more be excluded" in output
    assert not (case.folder / "summary.json").exists()


def test_an_uncommitted_protocol_is_refused(case: Case) -> None:
    case.write(commit=False)
    code, output = case.run()
    assert code == 1
    assert "is not committed in git" in output
    assert not (case.folder / "raw").exists()


def test_a_protocol_changed_since_its_commit_is_refused(case: Case) -> None:
    case.write()
    case.protocol["minimum_detectable_effect"] = 0.01
    case.write(commit=False)
    code, output = case.run()
    assert code == 1
    assert "is not committed in git as it is now" in output


def test_a_protocol_committed_again_after_data_is_refused(case: Case) -> None:
    case.write()
    process = case.start()
    _wait((case.folder / "raw" / "01-quick").is_dir)
    process.terminate()
    process.communicate(timeout=20)
    case.protocol["max_p"] = 0.5
    case.write()
    code, output = case.run()
    assert code == 1
    assert "protocol.json was changed after the first run" in output


def test_without_git_the_reason_is_kept(case: Case) -> None:
    case.write(commit=False)
    process = case.start("--no-git", "a machine without git")
    _wait((case.folder / "run.json").is_file)
    process.terminate()
    process.communicate(timeout=20)
    run = files.read_json(case.folder / "run.json")
    assert run["no_git_reason"] == "a machine without git"
    assert run["protocol_commit"] == ""


def test_another_checkpoint_than_the_protocols_is_refused(case: Case) -> None:
    case.write()
    (case.model / "config.json").write_text('{"a": 1}')
    code, output = case.run()
    assert code == 1
    assert "the checkpoint is another" in output


def test_observe_prints_what_a_protocol_must_say(case: Case) -> None:
    case.write(commit=False)
    code, output = case.run("--observe")
    assert code == 0
    assert json.loads(output)["model"] == case.protocol["model"]["sha256"]


def test_two_runs_of_one_folder_do_not_mix(case: Case) -> None:
    case.protocol["environment"]["set"]["STANDIN_CLIENT_WAIT_S"] = "20"
    case.write()
    process = case.start()
    _wait(lambda: len(case.servers()) == 1)
    code, output = case.run()
    process.terminate()
    process.communicate(timeout=20)
    assert code == 1
    assert "Another run of" in output


def test_counters_of_processes_without_a_device_are_dropped(tmp_path: Path) -> None:
    for pid, launches in ((70, 0), (7, 5), (8, 9)):
        counted = {"pid": pid, "total": {"launch_count": launches}}
        (tmp_path / f"counters-{pid}.json").write_text(json.dumps(counted))
    runner._keep_counters(tmp_path)
    kept = {path.name: files.read_json(path)["pid"] for path in tmp_path.iterdir()}
    assert kept == {"counters-0.json": 7, "counters-1.json": 8}
