# SPDX-License-Identifier: Apache-2.0
"""Reads pins.toml, the one place that names the core, torch and torch_npu versions we serve.

Imports neither torch nor vllm: the command line reads it before they are installed.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


@cache
def stack() -> dict[str, str]:
    """Distribution name -> exact version, for `vllm`, `torch` and `torch-npu`."""
    text = files(__package__).joinpath("pins.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["stack"])
