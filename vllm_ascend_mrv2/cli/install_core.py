# SPDX-License-Identifier: Apache-2.0
"""`install-core`: vLLM without CUDA packages, and the torch and torch-npu that go with it, into
the environment that runs this command.

vLLM's wheel brings 750 MB of CUDA kernels and names some twenty CUDA distributions as required.
Its source distribution, built for the target `empty`, has neither: pip resolves what is left by
itself, and `pip check` finds nothing missing. docs/cores.md gives the comparison. torch is its CPU
build: PyPI's carries CUDA, and beside that torch-npu aborts at import.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path

import click

from vllm_ascend_mrv2.cli import torch_index
from vllm_ascend_mrv2.cli.console import CliError, say
from vllm_ascend_mrv2.cli.installed import NOTHING, find, forget, is_cuda_build, lacks, torn
from vllm_ascend_mrv2.compat import pins
from vllm_ascend_mrv2.compat.pins import CorePin, is_cuda_torch


def _pip(step: str, arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    code = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    if code != 0:
        raise CliError(
            f"{step} failed: pip ended with exit code {code}.",
            why="pip's own message is above",
            do="Mend that (a network or a full disk, mostly) and run the command again: it goes on "
            "where it stopped.",
            exit_code=code,
        )


def _check_pip() -> None:
    if find_spec("pip") is None:
        raise CliError(
            f"{sys.executable} has no pip.",
            why="vLLM is installed with it",
            do=f"{sys.executable} -m ensurepip",
        )


def _installed() -> dict[str, Distribution]:
    """What is installed of vLLM, torch and torch-npu, whole or not."""
    return {name: dist for name in pins.stack() if (dist := find(name)) is not None}


def _fits(name: str, dist: Distribution, wanted: str) -> bool:
    """Whether it is of the wanted version, in a build without CUDA."""
    if name == "vllm":
        return dist.version == wanted and not is_cuda_build(dist)
    return pins.public(dist.version) == wanted and not is_cuda_torch(dist)


def _named(name: str, dist: Distribution) -> str:
    is_cuda = is_cuda_build(dist) if name == "vllm" else is_cuda_torch(dist)
    shown = "vLLM" if name == "vllm" else name
    return f"{shown} {dist.version}{' (its CUDA build)' if is_cuda else ''}"


def _install_torch(pin: CorePin, wanted: dict[str, str], options: list[str] | None) -> None:
    requirements = [f"{name}=={version}" for name, version in wanted.items()]
    if "torch" in wanted:
        if options is None:
            raise CliError(
                f"pip finds no CPU build of torch {pin.torch}.",
                why=f"neither the configured registry nor {pins.cpu_torch_index()} has or shows "
                f"torch=={pin.torch}+cpu, and beside a CUDA build torch-npu aborts at import",
                do="put its wheel into a folder, and name that in PIP_FIND_LINKS",
            )
        requirements = [f"torch=={pin.torch}+cpu", *options, *requirements[1:]]
    say(
        f"{' and '.join(wanted)}: about 300 MB, torch without CUDA: "
        "a minute or two on two idle cores."
    )
    _pip("Installing torch and torch-npu", requirements, {})


def pinned(version: str) -> CorePin:
    """The core of that version, or the reference for "". Raises CliError for one without a pin."""
    if not version:
        return pins.reference()
    known = {pin.vllm: pin for pin in pins.cores()}
    if version not in known:
        raise CliError(
            f"vLLM {version} is not a core that this plugin knows.",
            why="what goes with a core, and how it stands, is in compat/pins.toml",
            do=f"Name one of {', '.join(known)}.",
        )
    return known[version]


def _torn_beside(pin: CorePin) -> dict[str, Distribution]:
    """What is torn of all that the set requires, without the set itself."""
    broken = lacks(*pin.versions).torn
    return {name: dist for name, dist in broken.items() if name not in pin.versions}


def _forget(broken: dict[str, Distribution]) -> None:
    for name, dist in broken.items():
        say(f"{name} is not whole ({torn(dist)}): installing it anew.")
        forget(name, dist)


def install(version: str = "", *, replace: bool = False) -> None:
    """Install a pinned vLLM (the reference, unless told), its torch and torch-npu, and all else
    that it requires.

    Does nothing where all is there.
    """
    pin = pinned(version)
    want = pin.vllm
    installed = _installed()
    lacking = lacks(*pin.versions)
    whole = {name: dist for name, dist in installed.items() if name not in lacking.torn}
    others = [name for name, dist in whole.items() if not _fits(name, dist, pin.versions[name])]
    wanted = {n: v for n, v in pin.versions.items() if n not in whole or n in others}
    if not wanted and not replace and lacking == NOTHING:
        say(f"vLLM {want} without CUDA packages is installed, with all that it requires.")
        return
    _check_pip()
    if others and not replace:
        raise CliError(
            f"This environment has {' and '.join(_named(name, whole[name]) for name in others)}.",
            why=f"vLLM {want} without CUDA packages, torch {pin.torch} and torch-npu "
            f"{pin.torch_npu} would take their place.",
            do=f"Use another environment, or confirm with: {pins.install_command(pin)} --replace",
        )
    _forget(lacking.torn)
    is_built = replace or "vllm" in wanted
    torches = {name: version for name, version in wanted.items() if name != "vllm"}
    options = torch_index.options(pin.torch) if torches or is_built else []
    if torches:
        _install_torch(pin, torches, options)
    requirement = f"vllm=={want}"
    if is_built:
        say(
            f"vLLM {want} from its source distribution (45 MB), built without device "
            "kernels: about a minute on two idle cores, most of it unpacking torch for pip's build."
        )
        _pip(
            "Building vLLM",
            # No cache: pip's would hand this build to whoever asks for vLLM's sources next.
            ["--no-cache-dir", "--no-deps", "--no-binary=vllm"]
            + (["--force-reinstall"] if "vllm" in whole else [])
            + (options or [])  # of the build environment, which has a torch, too
            + [requirement],
            {
                "VLLM_TARGET_DEVICE": "empty",
                "VLLM_VERSION_OVERRIDE": want,
                # vLLM's optional Rust front end: with cargo on the machine it would be built, for
                # minutes and with downloads from a registry that may not be reachable.
                "CARGO": "/nonexistent",
            },
        )
    say("What vLLM requires (about 100 packages, 400 MB): about a minute on two idle cores.")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(f"torch=={pin.torch}\n", encoding="utf-8")
        required = ["-c", str(constraints), f"torch-npu=={pin.torch_npu}", requirement]
        _pip("Installing vLLM's requirements", required, {})
        # What only now is known to be needed may have been there, and torn. Not torch: whose build
        # pip would choose by itself here.
        while broken := _torn_beside(pin):
            _forget(broken)
            _pip("Installing vLLM's requirements", required, {})
    say(f"vLLM {want} is installed.")


def ensure_installed() -> None:
    """Install vLLM where there is none, and the rest of one that was interrupted.

    A vLLM that is not as `install` makes it is left alone.
    """
    core = find("vllm")
    if core is None:
        say(
            "vLLM is not installed in this environment: installing it first, without CUDA packages."
        )
        install()
        return
    version = core.version or ""
    is_pinned = version in {pin.vllm for pin in pins.cores()}
    if not torn(core) and (not is_pinned or is_cuda_build(core)):
        return
    lacking = lacks(*pins.stack())
    if lacking != NOTHING:
        some = (*lacking.torn, *lacking.unmet)[:3]
        say(
            f"vLLM {version} is not installed whole, with all that it requires "
            f"({', '.join(some)}): going on."
        )
        install(version if is_pinned else "")


@click.command("install-core")
@click.argument("version", default="")
@click.option("--replace", is_flag=True, help="Replace another vLLM that is installed.")
def install_core(version: str, replace: bool) -> None:
    """Install the vLLM that this plugin is developed with, or VERSION, without CUDA packages, and
    the torch and torch-npu that go with it.
    """
    install(version, replace=replace)
