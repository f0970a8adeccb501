# SPDX-License-Identifier: Apache-2.0
"""Pooling models give what transformers gives on the CPU: a real encoder, and decoders."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.engine.checkpoints import minilm_checkpoint
from tests.engine.conftest import ServerPool
from tests.engine.in_process import engine
from tests.engine.server import MODEL_NAME, ServerSpec
from tests.helpers.core_oracle import CoreOracle
from tests.helpers.kernel_fixtures import oracle  # noqa: F401

pytestmark = pytest.mark.xdist_group("pooling")

TOLERANCE = 2e-5  # of entries of a unit vector, and of probabilities
POOLING = {"runner": "pooling", "num_gpu_blocks_override": 160}


def prompts(lengths: tuple[int, ...], vocabulary: range) -> list[list[int]]:
    rng = random.Random(41)
    return [[rng.choice(vocabulary) for _ in range(length)] for length in lengths]


def inputs(asked: list[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": prompt} for prompt in asked]


@pytest.mark.long
def test_a_sentence_encoder(oracle: CoreOracle) -> None:  # noqa: F811
    """all-MiniLM-L6-v2: attention in both directions, without a KV cache."""
    checkpoint = minilm_checkpoint()
    lengths = (2, 9, 256, 31, 5, 120, 17, 64, 3, 200, 40, 8)
    words = prompts(tuple(length - 2 for length in lengths), range(2000, 29000))
    asked = [[101, *some, 102] for some in words]
    sizes = {"max_model_len": 256, "max_num_batched_tokens": 512}
    with engine(checkpoint, enable_prefix_caching=False, **sizes, **POOLING) as llm:
        made = [output.outputs.embedding for output in llm.embed(inputs(asked), use_tqdm=False)]
        alone = llm.embed(inputs(asked[3:4]), use_tqdm=False)[0].outputs.embedding
        near, far = (
            output.outputs.score
            for output in llm.score(
                "How do I bake bread?",
                ["Mix flour, water and yeast, then heat the oven.", "The stock market fell today."],
                use_tqdm=False,
            )
        )
    wanted, _ = oracle.call("tests.helpers.pooled.mean_embeddings", str(checkpoint), asked)
    torch.testing.assert_close(torch.tensor(made), wanted, rtol=0, atol=TOLERANCE)
    assert alone == pytest.approx(made[3], abs=TOLERANCE)
    assert near > far + 0.3


@pytest.mark.long
def test_a_decoder_s_last_token(
    tiny: Callable[[str, str], Path],
    oracle: CoreOracle,  # noqa: F811
) -> None:
    """In chunks, with blocks from the prefix cache the second time."""
    checkpoint = tiny("qwen3", "float32")
    asked = prompts((1, 200, 17, 64, 3, 150, 30, 31), range(256))
    with engine(checkpoint, max_num_seqs=4, **POOLING) as llm:
        made = [
            [output.outputs.embedding for output in llm.embed(inputs(asked), use_tqdm=False)]
            for _ in range(2)
        ]
    wanted, _ = oracle.call("tests.helpers.pooled.last_embeddings", str(checkpoint), asked)
    for embeddings in made:
        torch.testing.assert_close(torch.tensor(embeddings), wanted, rtol=0, atol=TOLERANCE)


def classifier(base: Path, folder: Path, labels: int) -> Path:
    """The tiny decoder with a random classification head."""
    folder.mkdir()
    for path in base.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((base / "config.json").read_text())
    names = {str(label): f"label {label}" for label in range(labels)}
    config |= {
        "architectures": ["Qwen3ForSequenceClassification"],
        "id2label": names,
        "label2id": {name: int(label) for label, name in names.items()},
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(base / "model.safetensors")
    weights.pop("lm_head.weight")
    head = np.random.default_rng(6).standard_normal((labels, config["hidden_size"]))
    weights["score.weight"] = head.astype(np.float32) / 4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.long
def test_a_classifier(
    tiny: Callable[[str, str], Path],
    tmp_path: Path,
    oracle: CoreOracle,  # noqa: F811
) -> None:
    checkpoint = classifier(tiny("qwen3", "float32"), tmp_path / "classifier", labels=3)
    asked = prompts((1, 200, 17, 64, 3, 150), range(256))
    with engine(checkpoint, max_num_seqs=4, **POOLING) as llm:
        made = [output.outputs.probs for output in llm.classify(inputs(asked), use_tqdm=False)]
    wanted, _ = oracle.call("tests.helpers.pooled.class_scores", str(checkpoint), asked)
    torch.testing.assert_close(torch.tensor(made), wanted, rtol=0, atol=TOLERANCE)


def cross_encoder(folder: Path) -> Path:
    """A random BERT that scores pairs, with the sentence encoder's tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(8)
    config = BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        num_labels=1,
        initializer_range=0.2,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    for path in minilm_checkpoint().glob("*token*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.long
def test_pairs_of_sentences(tmp_path: Path, oracle: CoreOracle) -> None:  # noqa: F811
    """A cross-encoder tells the two sentences apart by their token types."""
    checkpoint = cross_encoder(tmp_path / "cross")
    query, documents = "how to bake bread", ["mix flour and water", "the market fell", "heat"]
    sizes = {"max_model_len": 256, "max_num_batched_tokens": 512}
    with engine(checkpoint, enable_prefix_caching=False, **sizes, **POOLING) as llm:
        scores = llm.score(query, documents, use_tqdm=False)
        made = [output.outputs.score for output in scores]
    pairs = [[query, document] for document in documents]
    wanted, _ = oracle.call("tests.helpers.pooled.pair_scores", str(checkpoint), pairs)
    assert made == pytest.approx(wanted.tolist(), abs=TOLERANCE)
    assert len({round(score, 3) for score in made}) == len(documents)


@pytest.mark.long
def test_embeddings_over_http(servers: ServerPool) -> None:
    checkpoint = minilm_checkpoint()
    server = servers.get(
        ServerSpec(checkpoint, "float32", ("--runner", "pooling", "--max-num-seqs", "8"))
    )
    texts = ["a cat sleeps", "a kitten naps", "interest rates rose"]
    answer = server.client().embeddings.create(model=MODEL_NAME, input=texts)
    cat, kitten, rates = (np.asarray(item.embedding) for item in answer.data)
    assert np.linalg.norm(cat) == pytest.approx(1, abs=1e-4)
    assert cat @ kitten > cat @ rates + 0.3
