# SPDX-License-Identifier: Apache-2.0
"""Building: once, atomically, with errors that say what to do. Real compiler, small project."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from tests.helpers.processes import is_running
from vllm_ascend_mrv2.builds import Stack
from vllm_ascend_mrv2.cli import builder
from vllm_ascend_mrv2.cli.builder import ensure_built
from vllm_ascend_mrv2.cli.console import CliError

# Appends a step to every library, which runs after it has been linked.
_EXTRA_STEP = """
add_custom_target(extra ALL COMMAND {command} VERBATIM)
add_dependencies(extra ascendcl opapi hccl)
"""


def _add_step(project: Path, command: str) -> None:
    with (project / "CMakeLists.txt").open("a") as file:
        file.write(_EXTRA_STEP.format(command=command))


def _toolkits(cache: Path) -> list[str]:
    folder = cache / "toolkits"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _start(project: Path, stack: Stack, cache: Path) -> subprocess.Popen[str]:
    """ensure_built in a process and a process group of its own."""
    code = (
        "import sys; from pathlib import Path\n"
        "from vllm_ascend_mrv2.cli.builder import ensure_built\n"
        "from vllm_ascend_mrv2.builds import Stack\n"
        "a, b, c, d, e, f = sys.argv[1:]\n"
        "print(ensure_built(Path(a), Stack(Path(c), d, Path(e), f), Path(b)).path)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(project), str(cache), *map(str, astuple(stack))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def test_builds_once_and_again_when_the_sources_change(
    project: Path, stack: Stack, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = ensure_built(project, stack, cache)
    assert first.is_complete()
    assert (first.path / "opp").is_dir()
    facts = json.loads((first.path / "build.json").read_text())
    assert facts["torch_version"] == stack.torch_version
    built_at = (first.path / "build.json").stat().st_mtime_ns

    again = ensure_built(project, stack, cache)
    assert again == first
    assert (again.path / "build.json").stat().st_mtime_ns == built_at

    (project / "one.cpp").write_text("int one() { return 2; }\n")
    assert ensure_built(project, stack, cache) != first
    assert len(_toolkits(cache)) == 2, "a running process may still use the first"


def test_old_toolkits_are_removed(
    project: Path, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_KEPT_TOOLKITS", 2)
    cache = tmp_path / "cache"
    built = []
    for number in range(3):
        (project / "one.cpp").write_text(f"int one() {{ return {number}; }}\n")
        built.append(ensure_built(project, stack, cache).path.name)
        time.sleep(0.01)
    assert _toolkits(cache) == sorted(built[1:])


@pytest.mark.parametrize("gone", ["checkout", "environment"])
def test_what_belongs_to_something_that_is_gone_is_removed(
    project: Path, stack: Stack, tmp_path: Path, gone: str
) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    shutil.copytree(project, other)
    (other / "one.cpp").write_text("int one() { return 2; }\n")
    first = ensure_built(project, stack, cache).path.name
    if gone == "checkout":
        second = ensure_built(other, stack, cache).path.name
    else:
        second = ensure_built(project, replace(stack, torch_dir=other), cache).path.name
    works = set((cache / "work").iterdir())
    assert len(works) == 2
    shutil.rmtree(other)
    (project / "one.cpp").write_text("int one() { return 3; }\n")
    third = ensure_built(project, stack, cache).path.name
    # Another checkout with the same sources may use what the one that is gone has built.
    kept = [first, third] + ([second] if gone == "checkout" else [])
    assert _toolkits(cache) == sorted(kept)
    assert len(works & set((cache / "work").iterdir())) == 1


def test_installed_sources_leave_no_work_tree(project: Path, stack: Stack, tmp_path: Path) -> None:
    installed = tmp_path / "_csrc" / "emulator"
    installed.parent.mkdir()
    project.rename(installed)
    assert ensure_built(installed, stack, tmp_path / "cache").is_complete()
    assert list((tmp_path / "cache" / "work").iterdir()) == []


def test_two_builds_at_once_are_one(project: Path, stack: Stack, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    _add_step(project, f"sh -c \"echo built >> '{marks}'; sleep 1\"")
    processes = [_start(project, stack, tmp_path / "cache") for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert marks.read_text().splitlines() == ["built"]
    assert "waiting for it" in outputs[0][1] + outputs[1][1]


def test_a_compile_error_shows_the_first_error_and_the_log(
    project: Path, stack: Stack, tmp_path: Path
) -> None:
    (project / "one.cpp").write_text("int one() { return undeclared_name; }\n")
    with pytest.raises(CliError, match="undeclared_name") as e:
        ensure_built(project, stack, tmp_path / "cache")
    log = Path(e.value.why.removeprefix("the whole log is "))
    assert "undeclared_name" in log.read_text()
    assert _toolkits(tmp_path / "cache") == []


def test_a_build_that_makes_no_library_is_no_toolkit(
    project: Path, stack: Stack, tmp_path: Path
) -> None:
    text = (project / "CMakeLists.txt").read_text()
    (project / "CMakeLists.txt").write_text(text.replace(" opapi", ""))
    with pytest.raises(CliError, match=r"without libopapi\.so"):
        ensure_built(project, stack, tmp_path / "cache")
    assert _toolkits(tmp_path / "cache") == []


def test_too_little_space_is_said_before_the_build(
    project: Path, stack: Stack, tmp_path: Path
) -> None:
    with pytest.raises(CliError, match="too little disk space") as e:
        ensure_built(project, stack, tmp_path / "cache", min_free_bytes=1 << 60)
    assert "VLLM_ASCEND_MRV2_CACHE" in e.value.do
    assert _toolkits(tmp_path / "cache") == []


def test_space_is_looked_at_also_where_a_work_tree_is(
    project: Path, stack: Stack, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    ensure_built(project, stack, cache)
    (project / "one.cpp").write_text("int one() { return 2; }\n")
    with pytest.raises(CliError, match=f"too little disk space under {cache}"):
        ensure_built(project, stack, cache, min_free_bytes=1 << 60)
    held = sum(f.stat().st_size for f in (cache / "work").rglob("*") if f.is_file())
    assert ensure_built(project, stack, cache, min_free_bytes=held).is_complete()


def test_too_little_space_for_the_compilers_own_files(
    project: Path, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_SCARCE_BYTES", 1 << 60)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(CliError, match=f"too little disk space under {tmp_path}\\.") as e:
        ensure_built(project, stack, tmp_path / "cache")
    assert "set TMPDIR to a folder on another disk" in e.value.do


@pytest.mark.parametrize(
    ("full", "variable", "then"),
    [
        ("cache", "VLLM_ASCEND_MRV2_CACHE", 'message(FATAL_ERROR "Could NOT find Threads")'),
        ("temporary", "TMPDIR", 'message(FATAL_ERROR "Could NOT find Threads")'),
        # As by a cmake whose own files come out empty: a build that makes no library.
        ("cache", "VLLM_ASCEND_MRV2_CACHE", "set_target_properties(hccl PROPERTIES SUFFIX .x)"),
    ],
)
def test_a_failure_that_does_not_speak_of_the_full_disk_behind_it(
    project: Path,
    stack: Stack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    full: str,
    variable: str,
    then: str,
) -> None:
    filled = tmp_path / "filled"
    with (project / "CMakeLists.txt").open("a") as file:
        file.write(f'file(WRITE "{filled}" "")\n{then}\n')
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    original = builder.shutil.disk_usage

    def usage(folder: Path) -> tuple[int, int, int]:
        real = original(folder)
        return real._replace(free=200 << 10) if filled.exists() and folder.name == full else real

    monkeypatch.setattr(builder.shutil, "disk_usage", usage)
    with pytest.raises(CliError, match=f"The disk under {tmp_path / full} is full") as e:
        ensure_built(project, stack, tmp_path / "cache")
    assert f"set {variable} to" in e.value.do


def test_a_disk_that_fills_up_during_the_build(project: Path, stack: Stack, tmp_path: Path) -> None:
    # /dev/full answers every write with the kernel's ENOSPC, as a full disk does.
    _add_step(project, "cp one.cpp /dev/full WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}")
    with pytest.raises(CliError, match=r"The disk under .* is full"):
        ensure_built(project, stack, tmp_path / "cache")
    assert _toolkits(tmp_path / "cache") == []


def test_a_disk_that_fills_up_under_our_own_writes(
    project: Path, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    original = builder.shutil.copytree

    def copy_to_a_full_disk(source: Path, target: Path, **options: bool) -> None:
        monkeypatch.undo()  # copytree calls itself by this name
        original(source, target, **options)
        with Path("/dev/full").open("w") as full:
            full.write("x")

    monkeypatch.setattr(builder.shutil, "copytree", copy_to_a_full_disk)
    with pytest.raises(CliError, match=r"The disk under .* is full"):
        ensure_built(project, stack, cache)
    assert _toolkits(cache) == []
    assert ensure_built(project, stack, cache).is_complete()


def test_a_cache_that_cannot_be_written(project: Path, stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match="cannot be used") as e:
        ensure_built(project, stack, tmp_path / "file" / "cache")
    assert "VLLM_ASCEND_MRV2_CACHE" in e.value.do


@pytest.mark.parametrize("whom", ["group", "parent"])
def test_a_killed_build_leaves_nothing_and_the_next_one_succeeds(
    project: Path, stack: Stack, tmp_path: Path, whom: str
) -> None:
    cache, started, ended = tmp_path / "cache", tmp_path / "started", tmp_path / "ended"
    step = f"sh -c \"touch '{started}'; sleep 2; touch '{ended}'\""
    _add_step(project, step)
    killed = _start(project, stack, cache)
    _wait_until(started.exists)
    # The compilers, in process groups of their own, outlive a ninja that is killed.
    if whom == "group":
        os.killpg(killed.pid, signal.SIGKILL)
    else:
        killed.kill()
    killed.wait()
    assert _toolkits(cache) == []

    text = (project / "CMakeLists.txt").read_text()
    (project / "CMakeLists.txt").write_text(text.replace(step, "true"))
    assert ensure_built(project, stack, cache).is_complete()
    # A killed parent takes all with it; else orphans were waited for, which a ninja would have met.
    assert ended.exists() == (whom == "group")
    assert len(_toolkits(cache)) == 1


def _start_compiling(
    project: Path, stack: Stack, tmp_path: Path
) -> tuple[subprocess.Popen[str], int]:
    """A build in a process of its own that stands in a step, and that step's process."""
    started = tmp_path / "started"
    _add_step(
        project, f"sh -c \"echo $$ > '{started}.new'; mv '{started}.new' '{started}'; sleep 60\""
    )
    process = _start(project, stack, tmp_path / "cache")
    _wait_until(started.exists)
    return process, int(started.read_text())


def test_sigterm_stops_the_compilers_too(project: Path, stack: Stack, tmp_path: Path) -> None:
    process, compiler = _start_compiling(project, stack, tmp_path)
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    _wait_until(lambda: not is_running(compiler))
    assert _toolkits(tmp_path / "cache") == []


def test_sigkill_stops_the_compilers_too(project: Path, stack: Stack, tmp_path: Path) -> None:
    process, compiler = _start_compiling(project, stack, tmp_path)
    process.kill()
    process.wait()
    _wait_until(lambda: not is_running(compiler), seconds=5)


def test_a_compiler_without_cpp20_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(CliError, match=r"/bin/false does not compile C\+\+20") as e:
        builder.find_tools()
    assert e.value.do.startswith("Name another compiler in CXX")
    monkeypatch.delenv("CXX")
    (tmp_path / "c++").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError, match=r"does not compile C\+\+20") as e:
        builder.find_tools()
    assert e.value.do.startswith("apt-get install g++")


def test_a_launcher_before_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ccache = tmp_path / "ccache"
    ccache.write_text('#!/bin/sh\nexec "$@"\n')
    ccache.chmod(0o755)
    monkeypatch.setenv("CXX", f"{ccache} g++ -O1")
    tools = builder.find_tools()
    assert (tools.launcher, tools.cxx) == (str(ccache), shutil.which("g++"))
    monkeypatch.setenv("CXX", f"{ccache} {ccache} g++ -include stddef.h")
    assert builder.find_tools().launcher == f"{ccache};{ccache}"
    monkeypatch.setenv("CXX", "g++ -O1")
    assert builder.find_tools().launcher == ""


@pytest.mark.parametrize(
    "cxx", ["/nonexistent/g++", "/nonexistent/g++ -O2", "/nonexistent/a g++", '"', "-O2"]
)
def test_a_cxx_that_names_no_program(monkeypatch: pytest.MonkeyPatch, cxx: str) -> None:
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(CliError, match="compiler that CXX names was not found") as e:
        builder.find_tools()
    assert e.value.why.startswith(f"CXX={cxx}, and {cxx.split()[0]} is no program")
    assert e.value.do == "Name another compiler in CXX (g++ >= 10 or clang++ >= 14), or unset CXX."


def test_missing_cmake_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builder, "_search_path", lambda: str(tmp_path))
    with pytest.raises(CliError, match=r"^cmake was not found") as e:
        builder.find_tools()
    assert "vllm-ascend-mrv2[emulator]" in e.value.do
