# SPDX-License-Identifier: Apache-2.0
"""`install-core`: vLLM without CUDA packages, into the environment that runs this command.

vLLM's wheel brings 750 MB of CUDA kernels and names some twenty CUDA distributions as required.
Its source distribution, built for the target `empty`, has neither: pip resolves what is left by
itself, and `pip check` finds nothing missing. docs/cores.md gives the comparison.
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
from vllm_ascend_mrv2.compat.pins import CorePin


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


def _check_environment(pin: CorePin) -> None:
    if find_spec("pip") is None:
        raise CliError(
            f"{sys.executable} has no pip.",
            why="vLLM is installed with it",
            do=f"{sys.executable} -m ensurepip",
        )
    want = pin.torch
    torch = _find("torch")
    if torch is None or torch.version.partition("+")[0] != want:
        raise CliError(
            f"torch {want} must be installed first; "
            f"{'none' if torch is None else torch.version} is.",
            why=f"vLLM {pin.vllm} is built for it, and left to itself pip would take "
            "the newest torch, whose default build carries CUDA.",
            do=f"{pins.install_torch(pin)} cmake ninja   (these two are for the emulated device)",
        )


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
    """Install a pinned vLLM (the reference, unless told) and what it requires.

    Does nothing where all is there.
    """
    pin = pinned(version)
    want = pin.vllm
    core = _find("vllm")
    fits = core is not None and core.version == want and not is_cuda_build(core)
    if core is not None and fits and not replace and not unmet_requirements(core):
        say(f"vLLM {want} without CUDA packages is installed, with all that it requires.")
        return
    _check_environment(pin)
    if core is not None and not fits and not replace:
        kind = " (its CUDA build)" if is_cuda_build(core) else ""
        raise CliError(
            f"This environment has vLLM {core.version}{kind}.",
            why=f"vLLM {want} without CUDA packages would take its place.",
            do=f"Use another environment, or confirm with: {pins.install_command(pin)} --replace",
        )
    requirement = f"vllm=={want}"
    if not fits or replace:
        say(
            f"Step 1 of 2: vLLM {want} from its source distribution (45 MB), built without device "
            "kernels: about a minute, most of it unpacking torch into pip's build environment."
        )
        _pip(
            "Building vLLM",
            # No cache: pip's would hand this build to whoever asks for vLLM's sources next.
            ["--no-cache-dir", "--no-deps", "--no-binary=vllm"]
            + (["--force-reinstall"] if core is not None else [])
            + torch_index.options(pin.torch)  # of the build environment, which has a torch, too
            + [requirement],
            {
                "VLLM_TARGET_DEVICE": "empty",
                "VLLM_VERSION_OVERRIDE": want,
                # vLLM's optional Rust front end: with cargo on the machine it would be built, for
                # minutes and with downloads from a registry that may not be reachable.
                "CARGO": "/nonexistent",
            },
        )
    say("Step 2 of 2: what vLLM requires (about 100 packages, 400 MB): about a minute.")
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
    """Install the vLLM that this plugin is developed with, or VERSION, without CUDA packages."""
    install(version, replace=replace)
