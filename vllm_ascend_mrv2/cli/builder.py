# SPDX-License-Identifier: Apache-2.0
"""Compiles a product with CMake and Ninja and puts the result into the cache in one rename.

A build's folder is either complete or absent: a build that is killed, fails or meets a full disk
leaves at most a work tree, which the next build goes on with (a checkout) or replaces (a wheel).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_ascend_mrv2.builds import Product, Stack, build_key
from vllm_ascend_mrv2.cli.console import CliError, console, say
from vllm_ascend_mrv2.cli.toolkit import EMULATOR, Toolkit, toolkit_for

# A finished work tree takes 370 MiB (`du -sh` of it), most of it a precompiled ATen header; the
# rest is room for the compilers' temporary files.
MIN_FREE_BYTES = 1 << 30
# A disk with less left is why what ran on it failed, whatever it said.
_SCARCE_BYTES = 64 << 20
# g++ 12 on ATen's headers has 1120 MiB resident (wait4's ru_maxrss for cmake_pch.hxx).
_BYTES_PER_JOB = 3 << 29
# How many toolkits of one work tree stay, the newest first: a running process may use an older one.
_KEPT_TOOLKITS = 4
# What a build's folder and a work tree say of themselves, and the folders of an environment in it.
_FACTS = "build.json"
_ENVIRONMENT = ("torch_dir", "torch_npu_dir")
_TAIL_LINES = 30
_SHOWN_COLUMNS = 200  # a compiler's command line is longer, and in the log
_PLAIN_PERIOD_S = 10.0
# Loaded here, since a child must not between fork and exec.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_NINJA_STATUS = re.compile(r"^\[(\d+)/(\d+)\]")


@dataclass(frozen=True)
class Tools:
    """Absolute paths of the programs that a build runs.

    launcher: those that CXX names before the compiler (ccache), as CMake takes them, or "".
    """

    cxx: str
    cmake: str
    ninja: str
    launcher: str = ""


def _search_path() -> str:
    # cmake and ninja may come as pip packages: their scripts are in this
    # environment's folder, which is not on PATH where it has not been activated.
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def find_tools() -> Tools:
    """Find a C++20 compiler, cmake and ninja. Raises CliError that names what is missing."""
    launcher, cxx = _find_compiler()
    found: dict[str, str] = {}
    for name in ("cmake", "ninja"):
        path = shutil.which(name, path=_search_path())
        if path is None:
            raise CliError(
                f"{name} was not found.",
                why="What is compiled here is built with CMake and Ninja.",
                do="pip install cmake ninja   (vllm-ascend-mrv2[emulator] brings both)",
            )
        found[name] = path
    return Tools(cxx, found["cmake"], found["ninja"], launcher)


def _find_compiler() -> tuple[str, str]:
    """What CXX names before the compiler, with `;` between, and the compiler."""
    launcher = ""
    do = (
        "apt-get install g++   (as root; or your system's C++ compiler, g++ >= 10 or clang++ >= 14)"
    )
    candidates = ["c++", "g++", "clang++"]
    if wanted := os.environ.get("CXX", "").strip():
        do = "Name another compiler in CXX (g++ >= 10 or clang++ >= 14), or unset CXX."
        try:
            words = list(takewhile(lambda word: not word.startswith("-"), shlex.split(wanted)))
            absent = [word for word in words if shutil.which(word) is None]
            candidates = absent[:1] or words[-1:] or [wanted]
            launcher = ";".join(shutil.which(word) or word for word in words[:-1])
        except ValueError:  # a quote that does not end
            candidates = [wanted]
    cxx = next((path for name in candidates if (path := shutil.which(name))), None)
    if cxx is None and wanted:
        raise CliError(
            "The C++ compiler that CXX names was not found.",
            why=f"CXX={wanted}, and {candidates[0]} is no program",
            do=do,
        )
    if cxx is None:
        raise CliError(
            "No C++ compiler was found.",
            why=f"{', '.join(candidates)}: none is on PATH, and what is built here is compiled on "
            "this machine, against the installed torch. (A machine with an Ascend card serves "
            "without a compiler: there, do not use `emulator`.)",
            do=do,
        )
    probe = subprocess.run(
        [cxx, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
        input="#include <span>\nint main() { return std::span<int>{}.size(); }\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode != 0:
        raise CliError(
            f"{cxx} does not compile C++20.",
            why=probe.stderr.strip().splitlines()[-1] if probe.stderr.strip() else "it failed",
            do=do,
        )
    return launcher, cxx


def jobs() -> int:
    """Compiler processes to run at once: as many as cores, fewer where memory is short."""
    cores = len(os.sched_getaffinity(0))
    try:
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        available = int(re.search(r"MemAvailable:\s+(\d+) kB", meminfo)[1]) << 10  # type: ignore[index]
    except (OSError, TypeError):
        return cores
    return max(1, min(cores, available // _BYTES_PER_JOB))


def ensure_built(
    source: Path,
    stack: Stack,
    cache: Path,
    *,
    product: Product = EMULATOR,
    force: bool = False,
    min_free_bytes: int = MIN_FREE_BYTES,
) -> Toolkit:
    """The build of `product` from `source` for `stack`, made now if it is not there.

    Safe to call from several processes at once: one builds, the others wait and use its result.
    """
    toolkit = toolkit_for(source, stack, cache, product)
    if toolkit.is_complete() and not force:
        with contextlib.suppress(OSError):  # a cache on a read-only disk is as good
            os.utime(toolkit.path)
        return toolkit
    tools = find_tools()
    try:
        with _lock(cache) as lock_fd:
            toolkit = toolkit_for(source, stack, cache, product)
            if toolkit.is_complete() and not force:
                return toolkit
            return _Build(source, stack, cache, product, tools, lock_fd, min_free_bytes).run()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(cache) from error
        raise CliError(
            f"The cache folder {cache} cannot be used.",
            why=str(error),
            do="Set VLLM_ASCEND_MRV2_CACHE to a folder that you can write to.",
        ) from error


def _disk_full(where: Path, variable: str = "VLLM_ASCEND_MRV2_CACHE") -> CliError:
    return CliError(
        f"The disk under {where} is full.",
        why="The build ran out of space. Nothing half-built will be used.",
        do=f"Free about {MIN_FREE_BYTES >> 20} MiB there, or set {variable} to a folder on "
        "another disk, and run the command again.",
    )


def _temporary_folder() -> Path:
    """Where compilers put their temporary files, by their own rule."""
    wanted = filter(None, map(os.environ.get, ("TMPDIR", "TMP", "TEMP")))
    usable = os.R_OK | os.W_OK | os.X_OK
    found = (p for p in (*wanted, "/tmp", "/var/tmp") if Path(p).is_dir() and os.access(p, usable))
    return Path(next(found, "."))


def _end_with_parent() -> None:
    """For a child: SIGTERM, by which ninja and cmake end their own children, when we are gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[int]:
    """Hold the cache's build lock. The kernel frees it when its last holder is gone, also by kill.

    Yields the descriptor, which the build's children inherit: what outlives a killed parent goes on
    holding the lock while it still writes into the work tree.
    """
    cache.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(cache / "build.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another build is running; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the compilers are stopped with us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Build:
    """One build, under the lock."""

    def __init__(
        self,
        source: Path,
        stack: Stack,
        cache: Path,
        product: Product,
        tools: Tools,
        lock_fd: int,
        min_free_bytes: int,
    ) -> None:
        self.source = source
        self.stack = stack
        self.cache = cache
        self.product = product
        self.tools = tools
        self.lock_fd = lock_fd
        self.min_free_bytes = min_free_bytes
        # A work tree belongs to what CMake cannot change in one: where things are, not their text.
        place = json.dumps(
            [str(source), tools.cxx, tools.launcher, *map(str, asdict(stack).values())]
        )
        self.work = cache / "work" / hashlib.sha256(place.encode()).hexdigest()[:16]
        self.out = self.work / "toolkit"
        self.log = self.work / "build.log"

    def run(self) -> Toolkit:
        """Configure, compile, publish."""
        self._discard_leftovers()
        self._check_space()
        started = time.monotonic()
        say(
            f"Building the {self.product.title} for torch {self.stack.torch_version} and "
            f"torch-npu {self.stack.torch_npu_version}: about a minute on two idle cores.\n"
            f"  log: {self.log}"
        )
        with _terminable():
            # Sources that are edited meanwhile would be published under the wrong name.
            for _attempt in range(3):
                key = build_key(self.source, self.stack)
                self._compile()
                if build_key(self.source, self.stack) == key:
                    break
                say("The sources changed during the build; building what changed.")
            else:
                raise CliError(
                    f"The {self.product.title}'s sources keep changing while they are built.",
                    do="Run the command again when they are at rest.",
                )
            toolkit = self._publish(key)
        say(f"Built {toolkit.path} in {time.monotonic() - started:.0f} s.")
        return toolkit

    def _discard_leftovers(self) -> None:
        for partial in (self.cache / self.product.folder).glob("*.partial"):
            shutil.rmtree(partial, ignore_errors=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        (self.work / _FACTS).write_text(json.dumps(self._facts(), indent=1) + "\n", "utf-8")

    def _check_space(self) -> None:
        # A work tree that is there already holds part of what is needed.
        held = sum(f.lstat().st_size for f in self.work.rglob("*") if f.is_file())
        for folder, needed, variable in (
            (self.cache, self.min_free_bytes - held, "VLLM_ASCEND_MRV2_CACHE"),
            (_temporary_folder(), _SCARCE_BYTES, "TMPDIR"),
        ):
            free = shutil.disk_usage(folder).free
            if free < needed:
                raise CliError(
                    f"There is too little disk space under {folder}.",
                    why=f"{free >> 20} MiB are free; a build needs {needed >> 20} MiB there.",
                    do=f"Free some, or set {variable} to a folder on another disk.",
                )

    def _compile(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        tree = self.work / "cmake"
        configure = [
            self.tools.cmake,
            f"-S{self.source}",
            f"-B{tree}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={self.tools.ninja}",
            f"-DCMAKE_CXX_COMPILER={self.tools.cxx}",
            f"-DTORCH_DIR={self.stack.torch_dir}",
            f"-DTORCH_NPU_DIR={self.stack.torch_npu_dir}",
            f"-DOUTPUT_DIR={self.out}",
        ]
        if self.tools.launcher:
            configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={self.tools.launcher}")
        self._step("configuring", configure)
        self._step("compiling", [self.tools.ninja, "-C", str(tree), f"-j{jobs()}"])
        missing = [
            name for name in self.product.libraries if not (self.out / "lib64" / name).is_file()
        ]
        if missing and (full := self._full_disk()):
            raise full  # cmake may leave an empty build.ninja there, and say nothing
        if missing:
            raise CliError(
                f"The build ended without {', '.join(missing)}.",
                why=f"see {self.log}",
                do=f"This is a fault of {self.source}/CMakeLists.txt: report it with the log.",
            )

    def _step(self, what: str, command: list[str]) -> None:
        """Run one program, its output into the log. Raises CliError with the log's end."""
        environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
        environment.pop("CXX", None)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                pass_fds=(self.lock_fd,),
                preexec_fn=_end_with_parent,
            )
            try:
                assert process.stdout is not None
                with _progress(what) as advance:
                    for line in process.stdout:
                        log.write(line)
                        if match := _NINJA_STATUS.match(line):
                            advance(int(match[1]), int(match[2]))
                code = process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        if code != 0:
            raise self._failure(what, code)

    def _failure(self, what: str, code: int) -> CliError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        text = "\n".join(lines)
        if full := self._full_disk(text):
            return full
        # Where several files fail, the first error is the one to read.
        first = next((i for i, line in enumerate(lines) if line.startswith("FAILED:")), None)
        shown = lines[-_TAIL_LINES:] if first is None else lines[first : first + _TAIL_LINES]
        do = "Mend the error above, or report it with the log."
        if "Killed signal terminated program" in text:
            do = "The machine ran out of memory: give it more, or close other programs."
        return CliError(
            f"{what.capitalize()} the {self.product.title} failed (exit code {code}).\n\n"
            + "\n".join(f"    {line[:_SHOWN_COLUMNS]}" for line in shown)
            + "\n",
            why=f"the whole log is {self.log}",
            do=do,
        )

    def _full_disk(self, text: str = "") -> CliError | None:
        """The error of a full disk, where a disk is full or the log's `text` says so."""
        # By itself a cmake on a full disk may say that it finds no threads.
        if shutil.disk_usage(self.cache).free < _SCARCE_BYTES:
            return _disk_full(self.cache)
        if shutil.disk_usage(temporary := _temporary_folder()).free < _SCARCE_BYTES:
            return _disk_full(temporary, "TMPDIR")
        if "No space left on device" in text or "Disk quota exceeded" in text:
            return _disk_full(self.cache)
        return None

    def _publish(self, key: str) -> Toolkit:
        """Copy the result beside its final place, then rename: never visible in part."""
        final = self.cache / self.product.folder / key
        partial = final.with_name(f"{key}.partial")
        facts = {"key": key, **self._facts()}
        try:
            shutil.copytree(self.out, partial, symlinks=True)
            (partial / _FACTS).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
            if final.exists():
                # A process that has the old libraries mapped keeps them.
                shutil.rmtree(final)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._prune(final)
        if "_csrc" in self.source.parts:
            # Installed sources do not change: nothing will be built here a second time.
            shutil.rmtree(self.work, ignore_errors=True)
        return Toolkit(final, self.product.libraries)

    def _facts(self) -> dict[str, str]:
        """What is built from what, of its folder and of the work tree."""
        return {
            "source": str(self.source),
            "compiler": self.tools.cxx,
            "work": str(self.work),
            **{name: str(value) for name, value in asdict(self.stack).items()},
        }

    def _prune(self, newest: Path) -> None:
        """Remove what earlier states of the same sources left, but for the newest few, and what
        belongs to an environment or a checkout that is no longer there.
        """
        for folder in [facts.parent for facts in self.cache.glob(f"*/*/{_FACTS}")]:
            # Checkouts with the same sources share a build, but no work tree.
            needed = _ENVIRONMENT + (("source",) if folder.parent == self.work.parent else ())
            found = _read(folder)
            if any(name in found and not found[name].is_dir() for name in needed):
                shutil.rmtree(folder, ignore_errors=True)
        mine = [
            folder for folder in newest.parent.iterdir() if _read(folder).get("work") == self.work
        ]
        mine.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for old in mine[_KEPT_TOOLKITS:]:
            shutil.rmtree(old, ignore_errors=True)


def _read(folder: Path) -> dict[str, Path]:
    """The facts of a build or a work tree that are paths; none where there is none."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not a build, or cut short by a kill
        return {}
    return {name: Path(facts[name]) for name in ("work", "source", *_ENVIRONMENT) if name in facts}


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (finished, total): a bar on a terminal, elsewhere a line now and then."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def line(finished: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PLAIN_PERIOD_S:
                last = now
                say(f"  {what}: {finished} of {total} steps")

        yield line
        return
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def bar(finished: int, total: int) -> None:
            progress.update(task, completed=finished, total=total)

        yield bar
