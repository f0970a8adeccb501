# SPDX-License-Identifier: Apache-2.0
"""What is compiled on this machine, against which torch and torch_npu, and where it lies.

Pure questions about files and metadata, for the command line that builds and for the plugin that
loads. A build is named by all that went into it, so that a stale one is never found.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import vllm_ascend_mrv2
from vllm_ascend_mrv2 import envs

# Raised when the shape of a build's folder changes without its sources changing.
_LAYOUT = "1"


@dataclass(frozen=True)
class Product:
    """One thing that is compiled.

    name: of its command; title: for messages; sources: folder in csrc; folder: of its builds in
    the cache; libraries: in a build's lib64, without which it is not complete.
    """

    name: str
    title: str
    sources: str
    folder: str
    libraries: tuple[str, ...]


HOTPATH = Product("hotpath", "hot path", "hotpath", "hotpath", ("libascend_mrv2_hotpath.so",))


@dataclass(frozen=True)
class Stack:
    """The installed torch and torch_npu that something is compiled against."""

    torch_dir: Path
    torch_version: str
    torch_npu_dir: Path
    torch_npu_version: str


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder for everything that the command line builds."""
    chosen = envs.CACHE.read(environ)
    if chosen:
        return Path(chosen).expanduser().absolute()
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative value is not valid and is ignored.
    base = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
    return base / "vllm-ascend-mrv2"


def source_dir(product: Product) -> Path | None:
    """The product's sources: in a wheel inside the package, in a checkout beside it."""
    package = Path(vllm_ascend_mrv2.__file__).resolve().parent
    for csrc in (package / "_csrc", package.parent / "csrc"):
        if (csrc / product.sources / "CMakeLists.txt").is_file():
            return csrc / product.sources
    return None


def build_key(source: Path, stack: Stack) -> str:
    """Name of what is built from `source` against `stack`: 16 hex digits.

    The folders count as well as the versions: the libraries hold torch's folder as their RUNPATH,
    so that an environment that is deleted must not take another's build with it.
    """
    digest = hashlib.sha256()
    facts = (
        _LAYOUT,
        platform.machine(),
        str(stack.torch_dir),
        stack.torch_version,
        str(stack.torch_npu_dir),
        stack.torch_npu_version,
    )
    for fact in facts:
        digest.update(fact.encode() + b"\0")
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue  # what editors leave
        digest.update(path.relative_to(source).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def package_dir(name: str) -> tuple[str, Path]:
    """Version and folder of an installed package. Raises PackageNotFoundError."""
    found = distribution(name)
    return found.version, Path(str(found.locate_file(name.replace("-", "_")))).resolve()


def find(product: Product) -> tuple[Path | None, str]:
    """The product's complete build for the installed stack, or None and why it is not there."""
    source = source_dir(product)
    if source is None:
        return None, f"the {product.title} has no sources here"
    try:
        (torch, torch_dir), (npu, npu_dir) = package_dir("torch"), package_dir("torch-npu")
    except PackageNotFoundError as error:
        return None, f"{error.name} has no package metadata here"
    key = build_key(source, Stack(torch_dir, torch, npu_dir, npu))
    path = cache_root(os.environ) / product.folder / key
    if all((path / "lib64" / name).is_file() for name in product.libraries):
        return path, ""
    return None, f"the {product.title} is not built for torch {torch} and torch-npu {npu}"
