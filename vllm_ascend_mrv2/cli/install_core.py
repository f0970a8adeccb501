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
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import click
from packaging.requirements import Requirement

from vllm_ascend_mrv2.cli import torch_index
from vllm_ascend_mrv2.cli.console import CliError, say
from vllm_ascend_mrv2.compat import pins
from vllm_ascend_mrv2.compat.pins import CorePin, is_cuda_torch


def _find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _required(core: Distribution) -> list[Requirement]:
    """What `core` requires here, without its extras (one of which names CUDA in any build)."""
    requirements = map(Requirement, core.requires or [])
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]


def is_cuda_build(core: Distribution) -> bool:
    """The empty target names no accelerator's packages, the published wheel names many."""
    return any(r.name.lower().startswith(("nvidia-", "flashinfer")) for r in _required(core))


def unmet_requirements(core: Distribution) -> list[str]:
    """Requirements of `core` that this environment does not meet."""
    return [
        str(needs)
        for needs in _required(core)
        if (found := _find(needs.name)) is None
        or not needs.specifier.contains(found.version, prereleases=True)
    ]


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


def _fits(name: str, wanted: str) -> bool:
    """Whether that torch or torch-npu is installed, in a build without CUDA."""
    found = _find(name)
    return found is not None and pins.public(found.version) == wanted and not is_cuda_torch(found)


def _others(pin: CorePin, other_core: Distribution | None) -> list[str]:
    """What is installed in the place of the pin's, in words."""
    found = [(name, _find(name)) for name in ("torch", "torch-npu")]
    others = [
        f"{name} {dist.version}{' (its CUDA build)' if is_cuda_torch(dist) else ''}"
        for name, dist in found
        if dist is not None and not _fits(name, pin.versions[name])
    ]
    if other_core is not None:
        kind = " (its CUDA build)" if is_cuda_build(other_core) else ""
        others.append(f"vLLM {other_core.version}{kind}")
    return others


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
    say(f"{' and '.join(wanted)}: about 300 MB, torch without CUDA: a minute or several.")
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


def install(version: str = "", *, replace: bool = False) -> None:
    """Install a pinned vLLM (the reference, unless told), its torch and torch-npu, and all else
    that it requires.

    Does nothing where all is there.
    """
    pin = pinned(version)
    want = pin.vllm
    core = _find("vllm")
    fits = core is not None and core.version == want and not is_cuda_build(core)
    torches = {n: v for n, v in pin.versions.items() if n != "vllm" and not _fits(n, v)}
    if core is not None and fits and not torches and not replace and not unmet_requirements(core):
        say(f"vLLM {want} without CUDA packages is installed, with all that it requires.")
        return
    _check_pip()
    if (others := _others(pin, None if fits else core)) and not replace:
        raise CliError(
            f"This environment has {' and '.join(others)}.",
            why=f"vLLM {want} without CUDA packages, torch {pin.torch} and torch-npu "
            f"{pin.torch_npu} would take their place.",
            do=f"Use another environment, or confirm with: {pins.install_command(pin)} --replace",
        )
    options = torch_index.options(pin.torch) if torches or not fits or replace else []
    if torches:
        _install_torch(pin, torches, options)
    requirement = f"vllm=={want}"
    if not fits or replace:
        say(
            f"vLLM {want} from its source distribution (45 MB), built without device "
            "kernels: about a minute, most of it unpacking torch into pip's build environment."
        )
        _pip(
            "Building vLLM",
            # No cache: pip's would hand this build to whoever asks for vLLM's sources next.
            ["--no-cache-dir", "--no-deps", "--no-binary=vllm"]
            + (["--force-reinstall"] if core is not None else [])
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
    say("What vLLM requires (about 100 packages, 400 MB): about a minute.")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(f"torch=={pin.torch}\n", encoding="utf-8")
        _pip("Installing vLLM's requirements", ["-c", str(constraints), requirement], {})
    say(f"vLLM {want} is installed.")


def ensure_installed() -> None:
    """Install vLLM where there is none, and the rest of one that was interrupted.

    A vLLM that is not as `install` makes it is left alone.
    """
    core = _find("vllm")
    if core is None:
        say(
            "vLLM is not installed in this environment: installing it first, without CUDA packages."
        )
        install()
        return
    is_ours = core.version in {pin.vllm for pin in pins.cores()} and not is_cuda_build(core)
    if is_ours and (unmet := unmet_requirements(core)):
        say(f"vLLM {core.version} lacks what it requires ({', '.join(unmet[:3])}): going on.")
        install(core.version)


@click.command("install-core")
@click.argument("version", default="")
@click.option("--replace", is_flag=True, help="Replace another vLLM that is installed.")
def install_core(version: str, replace: bool) -> None:
    """Install the vLLM that this plugin is developed with, or VERSION, without CUDA packages, and
    the torch and torch-npu that go with it.
    """
    install(version, replace=replace)
