# SPDX-License-Identifier: Apache-2.0
"""The cores that we know (pins.toml), which set is verified, and the check of what is installed.

Imports neither torch nor vllm: the command line reads it before they are installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, version
from importlib.resources import files
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

Status = Literal["verified", "static", "differs"]


@dataclass(frozen=True)
class CorePin:
    """One core and what it goes with; pins.toml says what each field means."""

    vllm: str
    torch: str
    torch_npu: str
    commit: str
    sdist_sha256: str
    wheel_sha256: dict[str, str]  # machine -> hash
    status: Status
    verified: str = ""  # "DATE by COMMAND" where the status is "verified"
    not_run: str = ""  # why its tests have not run, where there is a reason to give

    @property
    def versions(self) -> dict[str, str]:
        """Distribution name -> exact version, for `vllm`, `torch` and `torch-npu`."""
        return {"vllm": self.vllm, "torch": self.torch, "torch-npu": self.torch_npu}


@cache
def _data() -> dict[str, Any]:
    text = files(__package__).joinpath("pins.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def cores() -> tuple[CorePin, ...]:
    """All cores that we know, the oldest first."""
    return tuple(
        CorePin(
            vllm=entry["vllm"],
            torch=entry["torch"],
            torch_npu=entry["torch-npu"],
            commit=entry["commit"],
            sdist_sha256=entry["sdist_sha256"],
            wheel_sha256=entry["wheel_sha256"],
            status=entry["status"],
            verified=(
                f"{entry['verified_on']} by {entry['verified_by']}"
                if entry["status"] == "verified"
                else ""
            ),
            not_run=entry.get("not_run", ""),
        )
        for entry in _data()["core"]
    )


def verified_cores() -> tuple[CorePin, ...]:
    """The cores that the tests pass on, the oldest first."""
    return tuple(pin for pin in cores() if pin.status == "verified")


@cache
def reference() -> CorePin:
    """The core that is developed against and that `install-core` installs."""
    return next(pin for pin in cores() if pin.vllm == _data()["reference"])


def stack() -> dict[str, str]:
    """Distribution name -> exact version of the reference."""
    return reference().versions


def device() -> dict[str, str]:
    """`cann` and `driver`: the versions that the tests ran on, or that are recommended."""
    return dict(_data()["device"])


def cpu_torch_index() -> str:
    """The package index that has torch's CPU builds."""
    return str(_data()["cpu_torch_index"])


def is_cuda_torch(torch: Distribution) -> bool:
    """Whether that torch is a CUDA build, beside which torch-npu aborts at import."""
    return any(line.startswith(("nvidia-", "cuda-")) for line in torch.requires or ())


def install_command(pin: CorePin) -> str:
    """What installs that core, with its torch and torch-npu."""
    named = "" if pin == reference() else f" {pin.vllm}"
    return f"vllm-ascend-mrv2 install-core{named}"


def public(found: str) -> str:
    """A version without its local part: 2.13.0+cpu is 2.13.0."""
    return found.partition("+")[0]


def matching(installed: Callable[[str], str | None]) -> CorePin | None:
    """The verified set that is installed as a whole, or None."""
    for pin in verified_cores():
        if all(public(installed(name) or "") == want for name, want in pin.versions.items()):
            return pin
    return None


def nearest(core: str | None, among: Iterable[CorePin] | None = None) -> CorePin:
    """The verified set for a core of that version: the newest that is not newer, else the oldest.

    Without a version (None, or one that is no version) it is the reference.
    """
    choices = tuple(verified_cores() if among is None else among)
    try:
        wanted = Version(core or "")
    except InvalidVersion:
        return reference()
    older = [pin for pin in choices if Version(pin.vllm) <= wanted]
    return older[-1] if older else choices[0]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def installed() -> CorePin | None:
    """The verified set that is installed here as a whole, or None."""
    return matching(_installed)


def version_problems(
    installed: Callable[[str], str | None] = _installed, among: Iterable[CorePin] | None = None
) -> list[str]:
    """One line for each distribution whose version is not that of the nearest set.

    among: the sets to choose from; the verified ones, where it is None. `installed` gives a
    distribution's version or None; local parts (`+cpu`) are ignored.
    """
    lines = []
    near = nearest(installed("vllm"), among)
    for name, wanted in near.versions.items():
        found = installed(name)
        if found is None or public(found) != wanted:
            mend = install_command(near) + (" --replace" if found else "")
            lines.append(
                f"{name} {found or 'is not installed'}: this release is verified with {wanted}; "
                f"{mend}"
            )
    return lines
