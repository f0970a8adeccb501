# SPDX-License-Identifier: Apache-2.0
"""A model that cannot be served ends the start soon, and the error names the reason.

What core finds in the configuration is asked in this process; the rest through `vllm serve`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.commands import Ran, vllm

pytestmark = pytest.mark.xdist_group("broken-models")


def serve(model: Path) -> Ran:
    """`vllm serve MODEL` to its end, which must be a failure."""
    ran = vllm(
        *("serve", model, "--device", "npu", "--dtype", "float32", "--max-model-len", "128"),
        *("--gpu-memory-utilization", "0.1", "--num-gpu-blocks-override", "16"),
    )
    assert ran.code != 0
    return ran


@pytest.fixture
def copy(tiny: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A checkpoint that a test may break."""
    return Path(shutil.copytree(tiny("qwen3", "float32"), tmp_path / "model"))


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    line = serve(missing).line_with(f"the model folder {missing} does not exist")
    assert "check its spelling" in line


def test_a_folder_without_a_configuration_is_named(
    copy: Path, engine_config: Callable[..., Any]
) -> None:
    (copy / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json") as caught:
        engine_config("--model", copy)
    assert str(copy) in str(caught.value)


def test_a_configuration_that_is_no_json_is_named(
    copy: Path, engine_config: Callable[..., Any]
) -> None:
    (copy / "config.json").write_text('{"architectures": [')
    with pytest.raises((ValueError, OSError), match=r"config\.json"):
        engine_config("--model", copy)


def test_a_model_type_that_nobody_knows_is_named(
    copy: Path, engine_config: Callable[..., Any]
) -> None:
    path = copy / "config.json"
    unknown = {"model_type": "nosuch", "architectures": ["NoSuchForCausalLM"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **unknown}))
    with pytest.raises(ValueError, match="nosuch"):
        engine_config("--model", copy)


@pytest.mark.long
def test_truncated_weights_are_found(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4096])
    serve(copy).line_with("SafetensorError")


@pytest.mark.long
def test_missing_weights_are_named(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert str(copy) in serve(copy).line_with("Cannot find any model weights")


@pytest.mark.long
def test_weights_of_another_shape_are_found(copy: Path) -> None:
    path = copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intermediate_size": 512}))
    ran = serve(copy)
    assert "512" in ran.output
    assert "256" in ran.output
