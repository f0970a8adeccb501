# SPDX-License-Identifier: Apache-2.0
"""What install-core decides from the metadata that is there, and what it asks pip for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_ascend_mrv2.cli import install_core
from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.compat import pins

WANT = pins.stack()["vllm"]
TORCH = pins.stack()["torch"]
TORCH_NPU = pins.stack()["torch-npu"]
OF_TORCH = ["--of-torch", TORCH]  # what pip is told to find its CPU build


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What pip would have been asked for; nothing is downloaded."""
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        install_core,
        "_pip",
        lambda _step, arguments, environment: calls.append((arguments, environment)),
    )
    monkeypatch.setattr(install_core.torch_index, "options", lambda torch: OF_TORCH)
    return calls


Asked = list[tuple[list[str], dict[str, str]]]


def test_an_empty_environment_gets_the_empty_target(
    site: Callable[..., Path], asked: Asked
) -> None:
    site("torch", f"{TORCH}+cpu")
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0", alone=True)
    install_core.install()
    (build, environment), (requirements, _) = asked
    # pip's build environment has a torch, too.
    assert build == ["--no-cache-dir", "--no-deps", "--no-binary=vllm", *OF_TORCH, f"vllm=={WANT}"]
    assert environment["VLLM_TARGET_DEVICE"] == "empty"
    assert not Path(environment["CARGO"]).exists()
    assert requirements[-1] == f"vllm=={WANT}"
    assert "-c" in requirements, "pip must not replace torch"


def test_a_complete_core_is_left_alone(site: Callable[..., Path], asked: Asked) -> None:
    site("six", "1.17.0")
    site("torch", TORCH)
    site("torch-npu", TORCH_NPU)
    site(
        *("vllm", WANT, "six>=1.16", "nvidia-codec; extra == 'deepstream'"),
        "absent; python_version < '3'",
        alone=True,
    )
    install_core.install()
    assert asked == []


def test_a_missing_requirement_is_completed_without_a_build(
    site: Callable[..., Path], asked: Asked
) -> None:
    site("torch", TORCH)
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0")
    site("six", "1.0")
    site("vllm", WANT, "six>=1.16", alone=True)
    install_core.install()
    assert len(asked) == 1
    assert asked[0][0][-1] == f"vllm=={WANT}"
    assert "--no-binary=vllm" not in asked[0][0]


@pytest.mark.parametrize(
    ("version", "requires", "named"),
    [("0.1.0", (), "vLLM 0.1.0"), (WANT, ("nvidia-cutlass-dsl==4.8.0",), "its CUDA build")],
)
def test_another_core_is_replaced_only_when_told(
    site: Callable[..., Path], asked: Asked, version: str, requires: tuple[str, ...], named: str
) -> None:
    site("torch", TORCH)
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0")
    site("vllm", version, *requires, alone=True)
    with pytest.raises(CliError, match=named) as e:
        install_core.install()
    assert "install-core --replace" in e.value.do
    assert asked == []
    install_core.install(replace=True)
    assert "--force-reinstall" in asked[0][0]


def test_another_core_is_named_by_its_version(site: Callable[..., Path], asked: Asked) -> None:
    site("torch", TORCH)
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0", alone=True)
    install_core.install("0.31.0")
    (build, environment), _ = asked
    assert build[-1] == "vllm==0.31.0"
    assert environment["VLLM_VERSION_OVERRIDE"] == "0.31.0"
    with pytest.raises(CliError, match=r"vLLM 0\.1\.0 is not a core that this plugin knows"):
        install_core.install("0.1.0")
    with pytest.raises(CliError, match=r"torch 2\.13\.0 and torch-npu 2\.13\.0\."):
        install_core.install("0.33.0")


def test_what_is_missing_of_torch_comes_first(site: Callable[..., Path], asked: Asked) -> None:
    site("pip", "26.0", alone=True)
    install_core.install()
    assert asked[0][0] == [f"torch=={TORCH}+cpu", *OF_TORCH, f"torch-npu=={TORCH_NPU}"]
    assert len(asked) == 3
    asked.clear()
    site("torch", TORCH)  # of some build without CUDA
    install_core.install()
    assert asked[0][0] == [f"torch-npu=={TORCH_NPU}"]


@pytest.mark.parametrize(
    ("version", "requires", "named"),
    [
        ("2.14.0", (), "torch 2.14.0"),
        (TORCH, ("nvidia-nccl-cu13==2.29.7",), f"torch {TORCH} (its CUDA build)"),
    ],
)
def test_another_torch_is_replaced_only_when_told(
    site: Callable[..., Path], asked: Asked, version: str, requires: tuple[str, ...], named: str
) -> None:
    site("torch", version, *requires)
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0", alone=True)
    with pytest.raises(CliError, match=re.escape(f"has {named}.")) as e:
        install_core.install()
    assert "install-core --replace" in e.value.do
    assert asked == []
    install_core.install(replace=True)
    assert asked[0][0] == [f"torch=={TORCH}+cpu", *OF_TORCH]


def test_no_cpu_build_of_torch_anywhere(
    site: Callable[..., Path], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    site("pip", "26.0", alone=True)
    monkeypatch.setattr(install_core.torch_index, "options", lambda torch: None)
    with pytest.raises(CliError, match=f"pip finds no CPU build of torch {TORCH}") as e:
        install_core.install()
    assert "PIP_FIND_LINKS" in e.value.do
    assert asked == []


def test_an_environment_without_pip(site: Callable[..., Path], asked: Asked) -> None:
    site("torch", TORCH, alone=True)
    with pytest.raises(CliError, match="has no pip"):
        install_core.install()


def test_run_installs_only_where_there_is_none(site: Callable[..., Path], asked: Asked) -> None:
    site("torch", TORCH)
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0")
    site("vllm", "0.1.0", alone=True)
    install_core.ensure_installed()
    assert asked == [], "another core is the user's; the start-up check speaks about it"


def test_run_goes_on_with_an_interrupted_installation(
    site: Callable[..., Path], asked: Asked
) -> None:
    site("torch", TORCH)
    site("torch-npu", TORCH_NPU)
    site("pip", "26.0")
    site("vllm", WANT, "transformers>=5", alone=True)
    install_core.ensure_installed()
    (step,) = asked
    assert step[0][-1] == f"vllm=={WANT}"
    assert "--no-binary=vllm" not in step[0]


def test_a_failing_pip_is_reported_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CliError, match="Building vLLM failed: pip ended with exit code 2"):
        install_core._pip("Building vLLM", ["--no-such-option"], {})
