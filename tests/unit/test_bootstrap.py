# SPDX-License-Identifier: Apache-2.0
"""tools/bootstrap.py: steps are skipped when done, and named when they fail."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "bootstrap.py"


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bootstrap", module)
    spec.loader.exec_module(module)
    return module


def test_steps_are_skipped_when_done_and_stop_at_the_first_failure(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def step(name: str, *, done: bool = False, error: str = "") -> object:
        def work() -> None:
            ran.append(name)
            if error:
                raise bootstrap.StepError(error)

        return bootstrap.Step(name, "nothing", lambda: done, work)

    steps = [step("a"), step("b", done=True), step("c", error="no such thing"), step("d")]
    monkeypatch.setattr(bootstrap, "plan", lambda _target, _at, _models: steps)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "run"])
    assert bootstrap.main() == 1
    assert ran == ["a", "c"]
    out = capsys.readouterr().out
    assert "error: step 3 of 4 (c) failed.\n  why: no such thing" in out


def test_a_stamp_is_good_for_its_content_only(bootstrap: ModuleType, tmp_path: Path) -> None:
    stamp, source = tmp_path / "stamps" / "s", tmp_path / "source"
    source.write_text("1")
    assert not bootstrap.stamped(stamp, bootstrap.content_hash(source))
    bootstrap.write_stamp(stamp, bootstrap.content_hash(source))
    assert bootstrap.stamped(stamp, bootstrap.content_hash(source))
    source.write_text("2")
    assert not bootstrap.stamped(stamp, bootstrap.content_hash(source))


def test_another_core_has_an_environment_of_its_own(bootstrap: ModuleType) -> None:
    reference, other = bootstrap.environment_for(""), bootstrap.environment_for("0.31.0")
    assert (reference.venv.name, other.venv.name) == (".venv", ".venv-0.31.0")
    assert bootstrap.environment_for(reference.core) == reference
    newer = bootstrap.environment_for("0.33.0")
    names = [step.name for step in bootstrap.plan("run", newer, [])]
    assert "vLLM 0.33.0, torch and torch-npu, without CUDA" in names
    with pytest.raises(bootstrap.StepError, match=r"vLLM 0\.1\.0 is not in .*0\.30\.0"):
        bootstrap.environment_for("0.1.0")


def test_an_unknown_model_is_refused_before_anything_is_installed() -> None:
    shown = subprocess.run(
        [sys.executable, SCRIPT, "run", "gpt-5"], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 1
    assert "No maker for the model 'gpt-5'" in shown.stdout
    assert "[1/" not in shown.stdout


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("csrc", "The folder csrc has no config.json, so is no checkpoint."),
        ("docs/evidence", "The folder docs/evidence is not there."),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_said_to_be_none(model: str, why: str) -> None:
    shown = subprocess.run(
        [sys.executable, SCRIPT, "run", model], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 1
    assert f"  why: {why} Name that of a checkpoint, or none.\n" in shown.stdout
    assert "[1/" not in shown.stdout


def test_a_port_that_is_taken_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        shown = subprocess.run(
            ["make", "serve", f"PORT={port}", f"PYTHON={sys.executable}"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=SCRIPT.parents[1],
        )
    assert shown.returncode != 0
    assert (
        f"  why: PORT={port} on HOST=127.0.0.1 is in use by another program. End that, or take "
        f"another: make serve PORT={port + 1 if port < 65535 else 1}\n"
    ) in shown.stdout
    assert "Serving" not in shown.stdout
    assert "[2/" not in shown.stdout


def test_a_port_that_was_just_left_is_free(bootstrap: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # first, so that the port is in TIME_WAIT
            assert client.recv(1) == b""
    assert bootstrap.port_step("127.0.0.1", str(port)).done()


@pytest.mark.parametrize(
    ("host", "port", "why"),
    [
        ("127.0.0.1", "http", "PORT=http is no port: make serve PORT=8000, a number from 1 to"),
        ("127.0.0.1", "65536", "PORT=65536 is no port: "),
        ("256.0.0.1", "8000", "HOST=256.0.0.1 is no host: "),
        ("192.0.2.1", "8000", "PORT=8000 on HOST=192.0.2.1 cannot be had: "),
    ],
)
def test_a_place_where_nothing_can_be_served(
    bootstrap: ModuleType, host: str, port: str, why: str
) -> None:
    with pytest.raises(bootstrap.StepError) as e:
        bootstrap.port_step(host, port).work()
    assert str(e.value).startswith(why)


def test_a_missing_compiler_is_named_with_its_package(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert bootstrap.missing_system_packages(compiler=True) == ["g++"]
    assert bootstrap.missing_system_packages(compiler=False) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(bootstrap.StepError, match=r"apt-get install .* g\+\+"):
        bootstrap.system_step(compiler=True).work()


def test_a_cxx_that_names_no_program_is_named_itself(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "/nonexistent/g++ -O2")
    assert bootstrap.missing_system_packages(compiler=True) == []
    step = bootstrap.system_step(compiler=True)
    assert not step.done()
    with pytest.raises(bootstrap.StepError) as e:
        step.work()
    assert str(e.value) == (
        "CXX=/nonexistent/g++ -O2, and /nonexistent/g++ is no program. Name another compiler in it "
        "(g++ >= 10 or clang++ >= 14), or unset it."
    )
    assert bootstrap.system_step(compiler=False).done()
    monkeypatch.setenv("CXX", " ")  # as good as not set
    assert bootstrap.missing_system_packages(compiler=True) == ["g++"]


def test_a_program_that_fails_is_named(bootstrap: ModuleType) -> None:
    with pytest.raises(bootstrap.StepError, match="`false` ended with exit code 1"):
        bootstrap.run(["false"])
    with pytest.raises(bootstrap.StepError, match="could not be started"):
        bootstrap.run(["/no/such/program"])
