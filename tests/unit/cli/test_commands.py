# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them: exit codes, signals, environment, and errors on stderr."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_ascend_mrv2
from vllm_ascend_mrv2.cli.toolkit import source_dir

CLI = [sys.executable, "-c", "from vllm_ascend_mrv2.cli.main import main; main()"]


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def cache(prebuilt_cache: Path) -> dict[str, str]:
    """Environment in which the toolkit is built."""
    return {"VLLM_ASCEND_MRV2_CACHE": str(prebuilt_cache)}


def test_run_passes_the_exit_code(cache: dict[str, str]) -> None:
    assert _run("emulator", "run", "--", "sh", "-c", "exit 7", **cache).returncode == 7


def test_run_becomes_the_command_so_that_signals_reach_it(cache: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*CLI, "emulator", "run", "--", "sh", "-c", "echo $$; exec sleep 60"],
        env={**os.environ, **cache},
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background job, as a test run may be one, ignores SIGINT and hands that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    with process:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == -signal.SIGINT


def test_run_passes_arguments_as_they_are(cache: dict[str, str]) -> None:
    shown = _run("emulator", "run", "--", "printf", "%s|", "--help", "a b", "--seed=1", **cache)
    assert shown.stdout == "--help|a b|--seed=1|"


def test_run_selects_the_toolkit_and_sets_the_switches(
    cache: dict[str, str], tmp_path: Path
) -> None:
    options = [
        "--guard",
        "--seed",
        "5",
        "--counters",
        "c-%p.json",
        "--devices",
        "3",
        "--hbm",
        "2GiB",
    ]
    shown = subprocess.run(
        [*CLI, "emulator", "run", *options, "--", "env", "-0"],
        env={**os.environ, **cache, "LD_LIBRARY_PATH": "/other"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = dict(item.split("=", 1) for item in shown.stdout.split("\0") if item)
    home = seen["ASCEND_HOME_PATH"]
    assert home.startswith(cache["VLLM_ASCEND_MRV2_CACHE"])
    assert seen["LD_LIBRARY_PATH"] == f"{home}/lib64:/other"
    assert seen["ASCEND_EMU_GUARD"] == "1"
    assert seen["ASCEND_EMU_SCHEDULE_SEED"] == "5"
    assert seen["ASCEND_EMU_COUNTERS"] == str(tmp_path / "c-%p.json")
    assert seen["ASCEND_EMU_DEVICES"] == "3"
    assert seen["ASCEND_EMU_HBM_BYTES"] == str(2 << 30)


@pytest.mark.parametrize("option", ["--check-report", "--suppressions"])
def test_what_is_about_findings_needs_the_checker(option: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    ran = _run("emulator", "run", option, str(file), "--", "true", ASCEND_EMU_CHECK="off")
    assert ran.returncode == 2
    assert f"{option} is about what --check finds: give that, too." in ran.stderr


def test_run_without_options_leaves_the_users_switches(cache: dict[str, str]) -> None:
    shown = _run(
        "emulator", "run", "--", "sh", "-c", "echo $ASCEND_EMU_GUARD", **cache, ASCEND_EMU_GUARD="1"
    )
    assert shown.stdout == "1\n"


def test_run_finds_the_environments_own_python(cache: dict[str, str]) -> None:
    shown = _run(
        *("emulator", "run", "--", "python", "-c", "import sys; print(sys.prefix)"),
        **cache,
        PATH="/usr/bin:/bin",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert shown.stdout.strip() == sys.prefix


def test_an_unknown_command_is_said_to_be_one(cache: dict[str, str]) -> None:
    shown = _run("emulator", "run", "--", "no-such-command", **cache)
    assert shown.returncode == 127
    assert "'no-such-command' was not found" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_file_that_is_no_program(cache: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x00\x01")
    broken.chmod(0o755)
    shown = _run("emulator", "run", "--", str(broken), **cache)
    assert shown.returncode == 126
    assert "could not be started" in shown.stderr


def test_a_wrong_size_is_refused(cache: dict[str, str]) -> None:
    shown = _run("emulator", "run", "--hbm", "lots", "--", "true", **cache)
    assert shown.returncode == 2
    assert "'lots' is not a number of bytes" in shown.stderr


def _device_range(name: str) -> tuple[int, int]:
    """Lowest and highest value of a setting, as the device's own source has them."""
    config = (source_dir() / "runtime" / "config.cpp").read_text(encoding="utf-8")
    found = re.search(rf'get_number\("{name}",[^,]+,([^,]+),([^,]+),', config)
    assert found is not None
    numbers = {"size_t": int, "UINT64_MAX": (1 << 64) - 1}
    lowest, highest = (
        eval(text.strip().replace("{", "(").replace("}", ")"), numbers) for text in found.groups()
    )
    return lowest, highest


def test_a_size_that_no_device_has_is_refused_here(cache: dict[str, str]) -> None:
    lowest, highest = _device_range("ASCEND_EMU_HBM_BYTES")
    for size in ("1MiB", "0", str(lowest - 1), str(highest + 1)):
        shown = _run("emulator", "run", "--hbm", size, "--", "true", **cache)
        assert shown.returncode == 2
        assert f"Invalid value for '--hbm': {size} is not from 64MiB to 1TiB." in shown.stderr
    for size in (lowest, highest):
        command = ("printenv", "ASCEND_EMU_HBM_BYTES")
        shown = _run("emulator", "run", "--hbm", str(size), "--", *command, **cache)
        assert shown.stdout == f"{size}\n"


@pytest.mark.parametrize(
    ("option", "name"),
    [("--devices", "ASCEND_EMU_DEVICES"), ("--seed", "ASCEND_EMU_SCHEDULE_SEED")],
)
def test_a_number_that_no_device_takes_is_refused_here(
    cache: dict[str, str], option: str, name: str
) -> None:
    _, highest = _device_range(name)
    shown = _run("emulator", "run", option, str(highest), "--", "printenv", name, **cache)
    assert shown.stdout == f"{highest}\n"
    shown = _run("emulator", "run", option, str(highest + 1), "--", "true", **cache)
    assert shown.returncode == 2
    assert f"Invalid value for '{option}'" in shown.stderr


def test_env_prints_exports_and_nothing_else(cache: dict[str, str]) -> None:
    shown = _run("emulator", "env", **cache)
    assert [line.split("=")[0] for line in shown.stdout.splitlines()] == [
        "export ASCEND_HOME_PATH",
        "export ASCEND_TOOLKIT_HOME",
        "export ASCEND_OPP_PATH",
        "export LD_LIBRARY_PATH",
        "export PYTHONPATH",
    ]


def test_every_refusal_says_what_to_do() -> None:
    package = Path(vllm_ascend_mrv2.__file__).parent
    without = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "CliError"
        and "do" not in {keyword.arg for keyword in node.keywords}
    ]
    assert without == []


def test_no_compiler(tmp_path: Path) -> None:
    shown = _run("emulator", "build", PATH="", CXX="", VLLM_ASCEND_MRV2_CACHE=str(tmp_path / "c"))
    assert shown.returncode == 1
    assert "No C++ compiler was found" in shown.stderr
    assert "apt-get install g++" in shown.stderr
    assert shown.stdout == ""
    assert not (tmp_path / "c").exists()


def test_the_command_line_imports_no_torch() -> None:
    code = (
        "import sys, vllm_ascend_mrv2.cli.main\n"
        "print([m for m in ('torch', 'torch_npu', 'vllm', 'transformers') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
