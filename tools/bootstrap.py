# SPDX-License-Identifier: Apache-2.0
"""Sets up what a make target needs, from a fresh Debian 12 on. `make` calls it; so may you.

    python3 tools/bootstrap.py lint | docs | dist | lm-eval | ray | run [--core VERSION]
        [--serves HOST:PORT] [MODEL ...]

Another core than the reference gets an environment of its own, .venv-VERSION. Standard library
only, since it runs before anything is installed. Each step says what it waits for, is skipped when
it is done, and names itself when it fails; a second run goes on from there.
What a step does is the command line's (vllm_ascend_mrv2/cli); only the order is decided here.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "vllm_ascend_mrv2" / "compat" / "pins.toml"
MODELS = ROOT / "build" / "models"
TINY_FAMILIES = ("qwen3", "qwen2", "llama", "qwen3_moe")
# .venv alone is 3 GB when complete (du -sh .venv); pip's temporary files come on top.
NEEDED_BYTES = 6 << 30


class StepError(Exception):
    """What went wrong in a step, and what to do."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the core it is for."""

    core: str
    venv: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def cli(self) -> Path:
        return self.venv / "bin" / "vllm-ascend-mrv2"


def environment_for(core: str) -> Environment:
    """Of a pinned core, or of the reference for "". Raises StepError for any other."""
    pins = tomllib.loads(PINS.read_text(encoding="utf-8"))
    known = {pin["vllm"]: pin for pin in pins["core"]}
    reference = pins["reference"]
    pin = known.get(core or reference)
    if pin is None:
        raise StepError(f"vLLM {core} is not in {PINS.relative_to(ROOT)}; {', '.join(known)} are.")
    venv = ROOT / (".venv" if pin["vllm"] == reference else f".venv-{core}")
    return Environment(pin["vllm"], venv)


@dataclass(frozen=True)
class Step:
    """One thing to set up. `done` must be quick, and true only if `work` has nothing to do."""

    name: str
    waits_for: str
    done: Callable[[], bool]
    work: Callable[[], None]


def say(message: str) -> None:
    """Print at once, also where stdout is a file."""
    print(message, flush=True)


def run(command: Iterable[str | Path], **environment: str) -> None:
    """Run a program with its output shown. Raises StepError if it fails or is not there."""
    words = [str(word) for word in command]
    try:
        code = subprocess.run(
            words, cwd=ROOT, env={**os.environ, **environment}, check=False
        ).returncode
    except OSError as error:
        raise StepError(f"`{words[0]}` could not be started: {error}.") from error
    if code != 0:
        raise StepError(
            f"`{' '.join(words)}` ended with exit code {code}; its own message is above."
        )


def content_hash(*paths: Path) -> str:
    """One hash of the files' contents, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def stamped(stamp: Path, content: str) -> bool:
    """Whether `stamp` says that its step was done for this content."""
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == content


def write_stamp(stamp: Path, content: str) -> None:
    """Say so, after the step."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(content, encoding="utf-8")


# --- the system ------------------------------------------------------------------------------


def missing_system_packages(*, compiler: bool) -> list[str]:
    """Debian packages that are needed and absent."""
    missing = []
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        missing.append("python3-venv")
    if compiler and not wrong_cxx() and not any(map(shutil.which, _compilers())):
        missing.append("g++")
    return missing


def _compilers() -> list[str]:
    """Names of the compilers that are looked for: what CXX names, and nothing else if it does.

    It may name others before it (ccache g++): the first that is absent is looked for.
    """
    wanted = os.environ.get("CXX", "").strip()
    if not wanted:
        return ["c++", "g++", "clang++"]
    try:
        words = list(takewhile(lambda word: not word.startswith("-"), shlex.split(wanted)))
    except ValueError:  # a quote that does not end
        words = []
    absent = [word for word in words if shutil.which(word) is None]
    return absent[:1] or words[-1:] or [wanted]


def wrong_cxx() -> str:
    """Why CXX names no compiler, and what to do; "" where it does, or is not set."""
    wanted = os.environ.get("CXX", "").strip()
    if not wanted or shutil.which(_compilers()[0]):
        return ""
    return (
        f"CXX={wanted}, and {_compilers()[0]} is no program. Name another compiler in it "
        "(g++ >= 10 or clang++ >= 14), or unset it."
    )


def system_step(*, compiler: bool) -> Step:
    """Packages of the system. As root they are installed, else the command is named."""

    def work() -> None:
        if compiler and (wrong := wrong_cxx()):
            raise StepError(wrong)
        packages = missing_system_packages(compiler=compiler)
        command = f"apt-get install --yes --no-install-recommends {' '.join(packages)}"
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise StepError(
                f"This system lacks {' and '.join(packages)} (Debian's names). As root, run: "
                f"apt-get update && {command}"
            )
        say(f"  as root: {command}")
        run(["apt-get", "update", "--quiet"])
        run(command.split(), DEBIAN_FRONTEND="noninteractive")
        importlib.invalidate_caches()
        if still := missing_system_packages(compiler=compiler):
            raise StepError(f"{' and '.join(still)} is still not there after installing.")

    return Step(
        "system packages",
        "apt-get, where the compiler or python3-venv is absent: a minute",
        lambda: not missing_system_packages(compiler=compiler) and not (compiler and wrong_cxx()),
        work,
    )


def port_step(host: str, port: str) -> Step:
    """Refuse at once a port that the server, minutes later, could not have."""

    def why_not() -> str:
        where = f"PORT={port} on HOST={host}"
        if not (port.isdecimal() and 0 < int(port) < 1 << 16):
            return f"PORT={port} is no port: make serve PORT=8000, a number from 1 to 65535."
        try:
            asked = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            return f"HOST={host} is no host: {error.strerror}. Name one of this machine's."
        # vLLM, too, takes IPv4 where a host has both.
        family, kind, _, _, address = min(asked, key=lambda found: found[0] != socket.AF_INET)
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return f"{where} cannot be had: {error.strerror}. Name others."
                other = int(port) % 65535 + 1
                return (
                    f"{where} is in use by another program. End that, or take another: "
                    f"make serve PORT={other}"
                )
        return ""

    def work() -> None:
        if why := why_not():
            raise StepError(why)

    return Step(f"port {port}", "nothing", lambda: not why_not(), work)


# --- the environment -------------------------------------------------------------------------


def venv_step(at: Environment) -> Step:
    """The virtual environment."""

    def done() -> bool:
        # An environment whose Python has been removed or moved looks complete and is not.
        asked = [str(at.python), "-m", "pip", "--version"]
        return at.python.exists() and subprocess.run(asked, capture_output=True).returncode == 0

    return Step(
        f"virtual environment {at.venv.relative_to(ROOT)}",
        "python3 -m venv: seconds",
        done,
        lambda: run([sys.executable, "-m", "venv", "--clear", at.venv]),
    )


def extras_step(at: Environment, name: str, extras: str, waits_for: str) -> Step:
    """This package, editable, with some of its extras."""
    stamp = at.venv / "stamps" / extras.replace(",", "-")
    content = content_hash(ROOT / "pyproject.toml")

    def work() -> None:
        run([at.python, "-m", "pip", "install", "--editable", f".[{extras}]"])
        write_stamp(stamp, content)

    return Step(name, waits_for, lambda: stamped(stamp, content), work)


# --- what runs -------------------------------------------------------------------------------


def command_step(at: Environment, name: str, waits_for: str, *arguments: str) -> Step:
    """A command of ours that does nothing where nothing is to be done."""
    return Step(name, waits_for, lambda: False, lambda: run([at.cli, *arguments]))


def model_step(at: Environment, model: str) -> Step:
    """One checkpoint in build/models."""
    out, stamp = MODELS / model, MODELS / f".{model}.stamp"
    makers = sorted((ROOT / "vllm_ascend_mrv2" / "cli" / "models").glob("*.py"))
    content = content_hash(*makers)
    if model == "smollm2":
        arguments = ["smollm2", str(out)]
        waits_for = "a download of 93 MB and its conversion: under a minute"
    elif model == "minilm":
        arguments, waits_for = ["minilm", str(out)], "a download of 85 MB"
    elif model.startswith("tiny-") and model.removeprefix("tiny-") in TINY_FAMILIES:
        arguments = ["tiny", str(out), "--family", model.removeprefix("tiny-")]
        waits_for = "seconds"
    elif (is_there := (ROOT / model).is_dir()) or "/" in model:
        has = "has no config.json, so is no checkpoint" if is_there else "is not there"
        raise StepError(f"The folder {model} {has}. Name that of a checkpoint, or none.")
    else:
        known = ["smollm2", "minilm", *(f"tiny-{family}" for family in TINY_FAMILIES)]
        raise StepError(
            f"No maker for the model {model!r}: name one of {', '.join(known)}, or the folder of a "
            "checkpoint."
        )

    def work() -> None:
        run([at.cli, "models", "make", *arguments, "--force"])
        write_stamp(stamp, content)

    def done() -> bool:
        return (out / "config.json").is_file() and stamped(stamp, content)

    return Step(f"model {out.relative_to(ROOT)}", waits_for, done, work)


def space_step(at: Environment) -> Step:
    """Refuse at once what would fail after minutes."""

    def done() -> bool:
        installed = any((at.venv / "lib").glob("python*/site-packages/torch_npu"))
        return installed or shutil.disk_usage(ROOT).free >= NEEDED_BYTES

    def work() -> None:
        raise StepError(
            f"{shutil.disk_usage(ROOT).free >> 20} MiB are free under {ROOT}; setting up needs "
            f"{NEEDED_BYTES >> 20} MiB. Free some, or clone to another disk."
        )

    return Step("disk space", "nothing", done, work)


def plan(target: str, at: Environment, models: list[str]) -> list[Step]:
    """The steps of a target, in order."""
    package = extras_step(
        at,
        "this package, its test and development tools",
        "dev,emulator,evidence,models,test",
        "about 40 packages, 80 MB: under a minute",
    )
    evaluation = extras_step(at, "lm-eval", "lm-eval", "about 40 packages, 150 MB: a minute or two")
    ray = extras_step(at, "Ray", "ray", "two packages, 240 MB: seconds")
    further = {"lm-eval": [evaluation], "ray": [ray]}.get(target, [])
    if target == "lint":
        return [system_step(compiler=False), venv_step(at), package]
    if target in ("docs", "dist"):
        tools = extras_step(at, f"tools of `make {target}`", target, "about 30 packages: seconds")
        return [system_step(compiler=False), venv_step(at), tools]
    return [
        system_step(compiler=True),
        space_step(at),
        venv_step(at),
        package,
        command_step(
            *(at, f"vLLM {at.core}, torch and torch-npu, without CUDA"),
            *("several minutes on two idle cores the first time", "install-core", at.core),
        ),
        command_step(
            *(at, "emulated Ascend device"),
            *("a minute or two on two idle cores the first time", "emulator", "build"),
        ),
        command_step(
            at, "hot path (C++ of the decode step)", "a minute the first time", "hotpath", "build"
        ),
        *further,
        *(model_step(at, model) for model in models),
    ]


def main() -> int:
    """Do the steps; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=["lint", "docs", "dist", "lm-eval", "ray", "run"])
    parser.add_argument("--core", default="", help="a core of compat/pins.toml; the reference")
    parser.add_argument("--serves", metavar="HOST:PORT", help="where a server is to be started")
    parser.add_argument("models", nargs="*", help="checkpoints to make in build/models")
    arguments = parser.parse_intermixed_args()
    if sys.version_info < (3, 11):  # noqa: UP036  (not installed: nothing else has checked)
        say(f"error: Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}.")
        say("  do: apt-get install python3.11, and `make PYTHON=python3.11 ...`")
        return 1
    name = "preparing"
    try:
        at = environment_for(arguments.core)
        steps = plan(arguments.target, at, arguments.models)
        if arguments.serves is not None:
            host, _, port = arguments.serves.rpartition(":")
            steps.insert(0, port_step(host, port))
        for number, step in enumerate(steps, start=1):
            name = f"step {number} of {len(steps)} ({step.name})"
            if step.done():
                continue
            say(f"[{number}/{len(steps)}] {step.name}; waits for: {step.waits_for}")
            started = time.monotonic()
            step.work()
            say(f"[{number}/{len(steps)}] done in {time.monotonic() - started:.0f} s")
    except (StepError, OSError) as error:
        say(f"error: {name} failed.\n  why: {error}")
        goes_on = ": it goes on with this step" if name != "preparing" else ""
        say(f"  do:  mend that and run the same command again{goes_on}.")
        return 1
    except KeyboardInterrupt:
        say(f"\nstopped in {name}; the same command goes on with it.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
