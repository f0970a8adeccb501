# SPDX-License-Identifier: Apache-2.0
"""A small CMake project in the emulator's shape, so that building is tested in seconds.

It is compiled for real; only its size differs. No test here needs a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_ascend_mrv2.builds import Stack, build_key
from vllm_ascend_mrv2.cli.toolkit import LIBRARIES, find_stack, source_dir

CMAKELISTS = """
cmake_minimum_required(VERSION 3.18)
project(small LANGUAGES CXX)
file(MAKE_DIRECTORY "${OUTPUT_DIR}/opp")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${OUTPUT_DIR}/lib64")
foreach(name ascendcl opapi hccl)
  add_library(${name} SHARED one.cpp)
endforeach()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Sources that build three libraries in about a second."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(CMAKELISTS)
    (folder / "one.cpp").write_text("int one() { return 1; }\n")
    return folder


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """A stack whose folders are there; the small project uses nothing of them."""
    for name in ("torch", "torch_npu"):
        (tmp_path / name).mkdir()
    return Stack(tmp_path / "torch", "2.13.0+cpu", tmp_path / "torch_npu", "2.13.0")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put distributions (real metadata, empty packages) before all others, or alone."""
    folder = tmp_path / "site-packages"
    folder.mkdir()

    def add(name: str, version: str, *requires: str, alone: bool = False) -> Path:
        package = folder / name.replace("-", "_")
        package.mkdir()
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        if alone:
            monkeypatch.setattr(sys, "path", [str(folder)])
        return package

    monkeypatch.syspath_prepend(str(folder))
    return add


@pytest.fixture
def prebuilt_cache(tmp_path: Path) -> Path:
    """A cache in which this environment's toolkit is there (with empty libraries).

    For what happens around a command that loads none of them.
    """
    cache = tmp_path / "cache"
    lib = cache / "toolkits" / build_key(source_dir(), find_stack()) / "lib64"
    lib.mkdir(parents=True)
    for name in LIBRARIES:
        (lib / name).touch()
    return cache
