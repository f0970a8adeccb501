# SPDX-License-Identifier: Apache-2.0
"""Where a toolkit is, what its name depends on, and the environment that selects it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_ascend_mrv2.builds import Stack, build_key, cache_root
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.toolkit import (
    Toolkit,
    find_stack,
    source_dir,
)


def test_the_key_follows_content_and_stack_and_nothing_else(project: Path, stack: Stack) -> None:
    key = build_key(project, stack)
    os.utime(project / "one.cpp", (1, 1))
    (project / ".one.cpp.swp").write_text("an editor's")
    assert build_key(project, stack) == key

    others = {
        build_key(project, replace(stack, torch_version="2.13.1")),
        build_key(project, replace(stack, torch_npu_version="2.13.0.post1")),
        build_key(project, replace(stack, torch_dir=Path("/elsewhere"))),
    }
    (project / "one.cpp").write_text("int one() { return 2; }\n")
    others.add(build_key(project, stack))
    (project / "one.cpp").rename(project / "two.cpp")
    others.add(build_key(project, stack))
    assert len(others - {key}) == 5


@pytest.mark.parametrize("before", [None, "", "/opt/lib:/opt/other lib"])
def test_exports_mean_to_a_shell_what_environment_says(before: str | None, tmp_path: Path) -> None:
    toolkit = Toolkit(tmp_path / 'it\'s a $HOME `path` "quoted"')
    base = {"PATH": os.environ["PATH"]}
    if before is not None:
        base |= {"LD_LIBRARY_PATH": before, "PYTHONPATH": before}
    shown = subprocess.run(
        ["/bin/sh", "-c", 'eval "$1"; env -0', "sh", toolkit.exports()],
        env=base,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    seen = dict(item.split("=", 1) for item in shown.split("\0") if item)
    expected = toolkit.environment(base)
    assert {name: seen.get(name) for name in expected} == expected
    for name, folder in toolkit.search_paths().items():
        assert expected[name].split(":")[0] == folder
        assert "" not in expected[name].split(":"), "an empty part means the folder we are in"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"VLLM_ASCEND_MRV2_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/vllm-ascend-mrv2")),
        ({"XDG_CACHE_HOME": "not/absolute"}, Path.home() / ".cache" / "vllm-ascend-mrv2"),
        ({}, Path.home() / ".cache" / "vllm-ascend-mrv2"),
    ],
)
def test_cache_root(environ: dict[str, str], expected: Path) -> None:
    assert cache_root(environ) == expected


def test_the_sources_are_found_in_this_checkout() -> None:
    assert (source_dir() / "runtime" / "api.h").is_file()


def test_the_installed_stack_is_found() -> None:
    stack = find_stack()
    assert (stack.torch_dir / "lib" / "libtorch_cpu.so").is_file()
    assert (stack.torch_npu_dir / "lib" / "libtorch_npu.so").is_file()


def test_versions_that_do_not_fit_are_refused(site: Callable[..., Path]) -> None:
    site("torch", "2.14.0+cpu")
    site("torch-npu", "2.13.0", "torch==2.13.0.*", "numpy")
    with pytest.raises(
        CliError, match=r"torch 2\.14\.0\+cpu and torch-npu 2\.13\.0 do not fit"
    ) as e:
        find_stack()
    assert "torch==2.13.0.*" in e.value.why
    assert e.value.do == "vllm-ascend-mrv2 install-core --replace"


def test_a_torch_that_carries_cuda_is_refused(site: Callable[..., Path]) -> None:
    site("torch", "2.13.0", "sympy", "cuda-toolkit[cublas]==13.0.3")
    site("torch-npu", "2.13.0", "torch==2.13.0.*")
    with pytest.raises(CliError, match=r"torch 2\.13\.0 is a CUDA build") as e:
        find_stack()
    assert e.value.do == "vllm-ascend-mrv2 install-core --replace"


def test_a_local_version_fits(site: Callable[..., Path]) -> None:
    torch = site("torch", "2.13.0+cpu")
    site("torch-npu", "2.13.0.post2", "torch==2.13.0.*")
    assert find_stack().torch_dir == torch.resolve()


@pytest.mark.parametrize("missing", ["torch", "torch-npu"])
def test_a_missing_distribution_is_named(site: Callable[..., Path], missing: str) -> None:
    present = {"torch": "torch-npu", "torch-npu": "torch"}[missing]
    site(present, "2.13.0", alone=True)
    with pytest.raises(CliError, match=f"^{missing} is not installed") as e:
        find_stack()
    assert e.value.do == "vllm-ascend-mrv2 install-core"
