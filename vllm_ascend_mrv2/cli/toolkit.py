# SPDX-License-Identifier: Apache-2.0
"""The emulator as something built: where it lives, and the environment that selects it.

Pure questions about files and metadata. Building is `builder`'s; nothing here runs a program.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vllm_ascend_mrv2
from vllm_ascend_mrv2 import builds
from vllm_ascend_mrv2.builds import Product, Stack, build_key
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.compat import pins

_INSTALL = "vllm-ascend-mrv2 install-core"
# What torch_npu opens first; a build without them is not a toolkit.
LIBRARIES = ("libascendcl.so", "libopapi.so", "libhccl.so")


EMULATOR = Product("emulator", "emulated Ascend device", "emulator", "toolkits", LIBRARIES)


@dataclass(frozen=True)
class Toolkit:
    """A folder shaped like a CANN toolkit: lib64/, python/, opp/, runtime/, compiler/."""

    path: Path
    libraries: tuple[str, ...] = LIBRARIES

    def is_complete(self) -> bool:
        """Whether it is there. It appears by one rename, so that it is never there in part."""
        return all((self.path / "lib64" / name).is_file() for name in self.libraries)

    def variables(self) -> dict[str, str]:
        """What a real toolkit's set_env.sh sets, but for the search paths."""
        return {
            "ASCEND_HOME_PATH": str(self.path),
            "ASCEND_TOOLKIT_HOME": str(self.path),
            "ASCEND_OPP_PATH": str(self.path / "opp"),
        }

    def search_paths(self) -> dict[str, str]:
        """The folders that it puts before others, of libraries and of Python modules."""
        return {
            "LD_LIBRARY_PATH": str(self.path / "lib64"),
            "PYTHONPATH": str(self.path / "python" / "site-packages"),
        }

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with this toolkit selected, before any other CANN."""
        paths = {
            name: f"{path}:{base[name]}" if base.get(name) else path
            for name, path in self.search_paths().items()
        }
        return {**base, **self.variables(), **paths}

    def exports(self) -> str:
        """The same as commands for sh, bash and zsh to evaluate."""
        lines = [f"export {k}={shlex.quote(v)}" for k, v in self.variables().items()]
        lines += [
            f'export {name}={shlex.quote(path)}"${{{name}:+:${name}}}"'
            for name, path in self.search_paths().items()
        ]
        return "\n".join(lines)


def source_dir(product: Product = EMULATOR) -> Path:
    """The product's sources. Raises CliError where they are not there."""
    if (found := builds.source_dir(product)) is not None:
        return found
    package = Path(vllm_ascend_mrv2.__file__).resolve().parent
    raise CliError(
        f"The {product.title}'s sources are not there.",
        why=f"Neither {package / '_csrc'} nor {package.parent / 'csrc'} has {product.sources}/.",
        do="Install the wheel again, or use a complete checkout.",
    )


def _installed(name: str) -> tuple[Distribution, Path]:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise CliError(
            f"{name} is not installed in this environment.",
            why="What is compiled here is compiled against the installed torch and torch-npu.",
            do=_INSTALL,
        ) from None
    folder = Path(str(found.locate_file(name.replace("-", "_")))).resolve()
    if not folder.is_dir():
        raise CliError(
            f"{name} {found.version} is installed, but {folder} is not a folder.",
            why="Its headers and libraries are needed; an editable build has them elsewhere.",
            do=f"Install the wheel: pip uninstall -y {name} && {_INSTALL}",
        )
    return found, folder


def find_stack() -> Stack:
    """Find torch and torch_npu by their metadata. Raises CliError if absent or mismatched."""
    torch, torch_dir = _installed("torch")
    if pins.is_cuda_torch(torch):
        raise CliError(
            f"torch {torch.version} is a CUDA build.",
            why="it and torch-npu register the same option of the allocator, and the second to do "
            "so aborts",
            do=f"{_INSTALL} --replace",
        )
    torch_npu, torch_npu_dir = _installed("torch-npu")
    for line in torch_npu.requires or []:
        needs = Requirement(line)
        if canonicalize_name(needs.name) != "torch":
            continue
        if not needs.specifier.contains(torch.version, prereleases=True):
            raise CliError(
                f"torch {torch.version} and torch-npu {torch_npu.version} do not fit.",
                why=f"torch-npu {torch_npu.version} is built for torch{needs.specifier}; another "
                "torch has another ABI.",
                do=f"{_INSTALL} --replace",
            )
    return Stack(torch_dir, torch.version, torch_npu_dir, torch_npu.version)


def toolkit_for(source: Path, stack: Stack, cache: Path, product: Product = EMULATOR) -> Toolkit:
    """The build that belongs to these sources and this stack, there or not."""
    return Toolkit(cache / product.folder / build_key(source, stack), product.libraries)
