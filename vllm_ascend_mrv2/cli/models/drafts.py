# SPDX-License-Identifier: Apache-2.0
"""Drafters for the tiny checkpoints: a draft model, EAGLE and EAGLE-3 heads, for a tiny llama.

The draft model is its target with some noise, and the EAGLE head its target over again, fed with
the tokens alone: their drafts are often right, so that accepted and rejected ones both occur. The
EAGLE-3 head is random: its drafts are mostly wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vllm_ascend_mrv2.cli.models import tiny
from vllm_ascend_mrv2.cli.models.checkpoint import Array
from vllm_ascend_mrv2.cli.models.tiny import Shape

_NOISE = 0.02  # of a weight's own spread


def model(target: Shape, seed: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """config.json and weights of a draft model: the tiny llama made with `seed`, and noise."""
    random = np.random.Generator(np.random.PCG64(seed + 1))

    def with_noise(array: Array) -> Array:
        noise = random.standard_normal(array.shape) * array.std() * _NOISE
        return (array + noise).astype(np.float32)

    weights = {name: with_noise(array) for name, array in target.weights(seed).items()}
    weights["lm_head.weight"][tiny.PAD + 1 :] = 0
    return target.config(), weights


def eagle(target: Shape, seed: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """config.json and weights of an EAGLE head for the tiny llama made with `seed`."""
    weights = target.weights(seed)
    width, first_gain = target.width, weights["model.layers.0.input_layernorm.weight"]
    out = {
        name.removeprefix("model."): array
        for name, array in weights.items()
        if name.startswith("model.layers.")
    }
    # The head has no norm before its first layer; its lm_head is the target's.
    del out["layers.0.input_layernorm.weight"]
    out["fc.weight"] = np.concatenate(
        (np.diag(first_gain), np.zeros((width, width), np.float32)), axis=1
    )
    return target.config(), out


def eagle3(target: Shape, seed: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """config.json and weights of a random EAGLE-3 head of one layer."""
    head = Shape(target.family, 1, target.hidden, target.heads, target.kv_heads)
    weights, random = head.weights(seed + 1), np.random.Generator(np.random.PCG64(seed + 2))
    width = head.width
    layer = "model.layers.0."
    out = {
        f"midlayer.{name.removeprefix(layer)}": array
        for name, array in weights.items()
        if name.startswith(layer)
    }
    for name in ("q", "k", "v"):  # over the token's embedding and the target's hidden state
        rows = out[f"midlayer.self_attn.{name}_proj.weight"].shape[0]
        wide = random.standard_normal((rows, 2 * width)) / np.sqrt(2 * width)
        out[f"midlayer.self_attn.{name}_proj.weight"] = wide.astype(np.float32)
    out["midlayer.hidden_norm.weight"] = np.ones(width, np.float32)
    wide = random.standard_normal((width, 3 * width)) / np.sqrt(3 * width)
    out["fc.weight"] = wide.astype(np.float32)
    out["norm.weight"] = weights["model.norm.weight"]
    out["lm_head.weight"] = weights["lm_head.weight"]
    config = {
        **head.config(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": tiny.VOCAB,
        "eagle_aux_hidden_state_layer_ids": [0, 1, target.layers],
    }
    return config, out


def write(out: Path, target: Shape, method: str, *, seed: int, dtype: str, force: bool) -> None:
    """Write the drafter for the tiny llama that `seed` and `target` give.

    method: vLLM's name of it, "draft_model", "eagle" or "eagle3".
    """
    makers = {"draft_model": model, "eagle": eagle, "eagle3": eagle3}
    config, weights = makers[method](target, seed)
    tiny.write_folder(out, config, weights, dtype=dtype, force=force)
