# SPDX-License-Identifier: Apache-2.0
"""The core, torch and torch_npu versions we serve (pins.toml), and the check of what is installed.

Imports neither torch nor vllm: the command line reads it before they are installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files


@cache
def stack() -> dict[str, str]:
    """Distribution name -> exact version, for `vllm`, `torch` and `torch-npu`."""
    text = files(__package__).joinpath("pins.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["stack"])


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def version_problems(installed: Callable[[str], str | None] = _installed) -> list[str]:
    """One line for each distribution whose version is not the verified one.

    `installed` gives a distribution's version or None; local parts (`+cpu`) are ignored.
    """
    lines = []
    for name, wanted in stack().items():
        found = installed(name)
        if found is None or found.split("+")[0] != wanted:
            mend = f"pip install {name}=={wanted}"
            if name == "vllm":
                mend = "vllm-ascend-mrv2 install-core" + (" --replace" if found else "")
            lines.append(
                f"{name} {found or 'is not installed'}: this release is verified with {wanted}; "
                f"{mend}"
            )
    return lines
