# SPDX-License-Identifier: Apache-2.0
"""Switches: values, defaults, unknown names, and that the README describes each."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.cli.main import cli

README = Path(__file__).parents[2] / "README.md"


def test_defaults_are_the_conservative_ones() -> None:
    assert envs.PIN_MEMORY.read({}) == "0"
    assert envs.SEQ_LENS.read({}) == "auto"


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(envs.SwitchError, match=r"SEQ_LENS='cpu' is not known; it takes auto or"):
        envs.SEQ_LENS.read({envs.SEQ_LENS.name: "cpu"})


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "nan", "inf", "1e999"])
def test_seconds_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(envs.SwitchError, match="it takes a finite number of seconds above 0"):
        envs.REPLAY_TIMEOUT_S.read({envs.REPLAY_TIMEOUT_S.name: value})


def test_seconds_are_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(envs.REPLAY_TIMEOUT_S.name, "2.5")
    assert envs.REPLAY_TIMEOUT_S.seconds() == 2.5


def test_a_folder_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert envs.CACHE.read({envs.CACHE.name: "~/cache"}) == "~/cache"
    monkeypatch.setenv(envs.CACHE.name, "~nobody-of-this-name/x")
    ended = CliRunner().invoke(cli, ["emulator", "build"])
    assert ended.exit_code == 1
    assert ended.output.splitlines() == [
        f"error: {envs.CACHE.name}='~nobody-of-this-name/x' is not known.",
        "  why: it takes a folder",
        "  do:  Unset it or correct it.",
    ]


def test_unknown_names_are_found() -> None:
    environ = {envs.PREFIX + "PINMEMORY": "1", envs.PIN_MEMORY.name: "1", "VLLM_LOGGING_LEVEL": "x"}
    assert envs.unknown_switches(environ) == [envs.PREFIX + "PINMEMORY"]


def test_an_unknown_name_is_refused_with_the_one_that_is_meant() -> None:
    with pytest.raises(envs.SwitchError) as e:
        envs.refuse_unknown({envs.PREFIX + "PINMEMORY": "1", envs.PREFIX + "X": "1"})
    assert str(e.value) == (
        "unknown switches VLLM_ASCEND_MRV2_PINMEMORY, VLLM_ASCEND_MRV2_X: did you mean "
        "VLLM_ASCEND_MRV2_PIN_MEMORY? unset VLLM_ASCEND_MRV2_PINMEMORY; unset VLLM_ASCEND_MRV2_X. "
        "They are in the README."
    )
    envs.refuse_unknown({envs.PIN_MEMORY.name: "1"})


@pytest.mark.parametrize("switch", envs.SWITCHES, ids=lambda switch: switch.name)
def test_the_readme_describes_each_switch(switch: envs.Switch) -> None:
    rows = [line for line in README.read_text().splitlines() if f"`{switch.name}`" in line]
    assert any(switch.meaning in row for row in rows), f"no README row says: {switch.meaning}"
