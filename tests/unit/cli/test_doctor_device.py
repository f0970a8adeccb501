# SPDX-License-Identifier: Apache-2.0
"""`doctor --device`: each probe on the emulated device, where it holds and where it cannot."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.unit.cli.test_doctor_rules import CARD
from vllm_ascend_mrv2.cli.doctor import device, rules
from vllm_ascend_mrv2.cli.doctor.child import ask
from vllm_ascend_mrv2.cli.doctor.commands import doctor
from vllm_ascend_mrv2.cli.doctor.device import DeviceProbe
from vllm_ascend_mrv2.cli.doctor.rules import Finding, Level

# One worker makes what these tests share.
pytestmark = pytest.mark.xdist_group("doctor_device")


@pytest.fixture(scope="module")
def probes() -> dict[str, DeviceProbe]:
    return {probe.name: probe for probe in device.run(os.environ)}


def test_all_that_is_assumed_holds(probes: dict[str, DeviceProbe]) -> None:
    assert {name: (p.holds, p.error) for name, p in probes.items()} == dict.fromkeys(
        device.PROBES, (True, "")
    )


def test_copies_from_pinned_memory_were_really_late(probes: dict[str, DeviceProbe]) -> None:
    """Else the two probes of pinned memory would show nothing."""
    measured = probes["pinned_ordering"].measured
    assert measured["reads_source_late"] is True
    assert (measured["rounds"], measured["wrong"]) == (device.ROUNDS, 0)
    assert probes["pinned_reuse"].measured == {"rounds": device.ROUNDS, "wrong": 0}


def test_lengths_around_a_blocks_end(probes: dict[str, DeviceProbe]) -> None:
    measured = probes["fia_lengths"].measured
    assert measured["kv_lens"] == [1, 128, 129, 5, 300]
    assert len(measured["largest_differences"]) == 5
    assert max(measured["largest_differences"]) < 5e-3


def test_streams_are_counted(probes: dict[str, DeviceProbe]) -> None:
    assert probes["stream_budget"].measured == {"created": 1984, "counted_on": 1856}


def test_a_device_with_fewer_streams() -> None:
    environ = {**os.environ, "ASCEND_EMU_STREAM_BUDGET": "300"}
    holds, saw, measured = ask("-m", device.__name__, "stream_budget", environ=environ)
    assert not holds
    assert measured["created"] <= 300
    assert saw.endswith("streams could be created, 1856 are counted on for graphs")


def test_without_a_device_nothing_could_be_tried() -> None:
    environ = {**os.environ, "ASCEND_RT_VISIBLE_DEVICES": ""}
    answer = ask("-m", device.__name__, "pinned_reuse", environ=environ)
    assert isinstance(answer, str), "an error, not an answer"
    assert "Error" in answer


def _found(*probes: DeviceProbe) -> list[Finding]:
    return [*rules.device_probes(replace(CARD, device_probes=probes))]


@pytest.mark.parametrize("name", device.PROBES)
def test_each_failure_has_a_next_step(name: str) -> None:
    (failed,) = _found(DeviceProbe(name, False, "something"))
    is_default_affected = not name.startswith("pinned")
    assert failed.level is (Level.PROBLEM if is_default_affected else Level.NOTE)
    assert failed.says.endswith(": something")
    assert failed.next_step
    (untried,) = _found(DeviceProbe(name, None, error="ImportError: x"))
    assert untried.level is Level.PROBLEM
    assert untried.says.endswith("could not be tried: ImportError: x")
    (held,) = _found(DeviceProbe(name, True, "50 of 50"))
    assert (held.level, held.next_step) == (Level.OK, "")


def test_the_report_has_the_probes(
    monkeypatch: pytest.MonkeyPatch, probes: dict[str, DeviceProbe]
) -> None:
    monkeypatch.setattr(device, "run", lambda environ: tuple(probes.values()))
    result = CliRunner().invoke(doctor, ["--device", "--json"])
    report = json.loads(result.stdout)
    assert [p["name"] for p in report["facts"]["device_probes"]] == list(device.PROBES)
    lines = [f["says"] for f in report["findings"] if f["topic"] == "device"]
    assert len(lines) == len(device.PROBES)
    assert result.exit_code == 0


@pytest.mark.long
def test_without_a_device_it_says_so_once() -> None:
    result = CliRunner(env={"ASCEND_RT_VISIBLE_DEVICES": ""}).invoke(doctor, ["--device", "--json"])
    lines = [f for f in json.loads(result.stdout)["findings"] if f["topic"] == "device"]
    assert lines == [
        {
            "level": "problem",
            "topic": "device",
            "says": "nothing was tried: torch reaches no device",
            "next_step": "mend the problems above first",
        }
    ]
    assert result.exit_code == 1


@pytest.mark.long
def test_unless_it_is_asked_for_nothing_is_tried() -> None:
    result = CliRunner().invoke(doctor, ["--json"])
    assert json.loads(result.stdout)["facts"]["device_probes"] is None
