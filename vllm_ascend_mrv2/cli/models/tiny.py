# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints with a byte tokenizer: one byte is one token, lengths are plain to see.

The scale of the weights is chosen so that the next token depends on the whole context: with the
usual 0.02 a two-layer model repeats its last token, and an attention fault goes unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from vllm_ascend_mrv2.cli.models import checkpoint
from vllm_ascend_mrv2.cli.models.checkpoint import Array

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>")
BOS, EOS, PAD = 256, 258, 259
# 256 bytes and the specials, rounded up to a multiple of 64.
VOCAB = 320
MAX_POSITION = 2048

_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Each family's name in its architecture; the last has experts where others have one MLP.
FAMILIES = {
    "qwen3": "Qwen3",
    "qwen2": "Qwen2",
    "llama": "Llama",
    "qwen3_moe": "Qwen3Moe",
    "mimo": "MiMo",
}
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_INNER = 8, 2, 64


@dataclass(frozen=True)
class Shape:
    """Family (see FAMILIES) and size. Heads are 64 wide, which every backend takes.

    mimo is qwen2 with one MTP module, which predicts as the model's first layer would from the
    tokens alone: with one layer its drafts are mostly right.
    """

    family: str = "qwen3"
    layers: int = 2
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2

    @property
    def width(self) -> int:
        """Hidden size; qwen2 has no head_dim of its own, so its heads must fill it."""
        return self.heads * self.head_dim if self.is_qwen2 else self.hidden

    @property
    def is_qwen2(self) -> bool:
        """Whether the layers are Qwen2's."""
        return self.family in ("qwen2", "mimo")

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return 64

    def config(self) -> dict[str, Any]:
        """config.json but for the dtype."""
        experts = {
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "moe_intermediate_size": EXPERT_INNER,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
        return {
            "architectures": [f"{FAMILIES[self.family]}ForCausalLM"],
            "model_type": "qwen2" if self.is_qwen2 else self.family,
            "vocab_size": VOCAB,
            "hidden_size": self.width,
            "intermediate_size": 256,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            **({} if self.is_qwen2 else {"head_dim": self.head_dim, "attention_bias": False}),
            **({"num_nextn_predict_layers": 1} if self.family == "mimo" else {}),
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITION,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "tie_word_embeddings": False,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "use_cache": True,
            **(experts if self.family == "qwen3_moe" else {}),
        }

    def weights(self, seed: int) -> dict[str, Array]:
        """Name -> float32 array, in Hugging Face's names and layout (`[out, in]`)."""
        random = np.random.Generator(np.random.PCG64(seed))
        hidden, inner = self.width, 256
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def linear(rows: int, columns: int) -> Array:
            return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

        def gain(size: int) -> Array:
            return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

        embedding = random.standard_normal((VOCAB, hidden)).astype(np.float32)
        out = {"model.embed_tokens.weight": embedding}
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                out[f"{p}self_attn.{name}_proj.weight"] = linear(size, hidden)
                if self.is_qwen2:
                    out[f"{p}self_attn.{name}_proj.bias"] = gain(size) - 1
            out[f"{p}self_attn.o_proj.weight"] = linear(hidden, queries)
            if self.family in ("qwen3", "qwen3_moe"):
                out[f"{p}self_attn.q_norm.weight"] = gain(self.head_dim)
                out[f"{p}self_attn.k_norm.weight"] = gain(self.head_dim)
            if self.family == "qwen3_moe":
                out[f"{p}mlp.gate.weight"] = linear(EXPERTS, hidden)
                mlps = [(f"{p}mlp.experts.{expert}", EXPERT_INNER) for expert in range(EXPERTS)]
            else:
                mlps = [(f"{p}mlp", inner)]
            for mlp, width in mlps:
                out[f"{mlp}.gate_proj.weight"] = linear(width, hidden)
                out[f"{mlp}.up_proj.weight"] = linear(width, hidden)
                out[f"{mlp}.down_proj.weight"] = linear(hidden, width)
            out[f"{p}input_layernorm.weight"] = gain(hidden)
            out[f"{p}post_attention_layernorm.weight"] = gain(hidden)
        out["model.norm.weight"] = gain(hidden)
        out["lm_head.weight"] = linear(VOCAB, hidden)
        # The padding of the vocabulary has no text: logit 0 is never the best of 320.
        out["lm_head.weight"][PAD + 1 :] = 0
        if self.family == "mimo":
            out |= self._mtp_module(out)
        return out

    def _mtp_module(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """The first layer of `weights` as an MTP module that looks at the next token only."""
        p, ones = "model.mtp_layers.0.", np.ones(self.width, np.float32)
        layer = "model.layers.0."
        return {
            f"{p}token_layernorm.weight": ones,
            f"{p}hidden_layernorm.weight": ones,
            f"{p}input_proj.weight": np.eye(self.width, 2 * self.width, self.width).astype(
                np.float32
            ),
            f"{p}final_layernorm.weight": weights["model.norm.weight"],
            **{
                p + name.removeprefix(layer): weights[name]
                for name in weights
                if name.startswith(layer)
            },
        }


def tokenizer() -> Tokenizer:
    """Every byte is a token; any text comes back as it was."""
    # The 256 printable stand-ins for bytes that byte-level BPE uses.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(tokenizer_models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return made


def write(out: Path, shape: Shape, *, seed: int, dtype: str, force: bool) -> None:
    """Write the checkpoint; the same arguments give the same bytes."""
    write_folder(out, shape.config(), shape.weights(seed), dtype=dtype, force=force)


def write_folder(
    out: Path, config: Mapping[str, Any], weights: Mapping[str, Array], *, dtype: str, force: bool
) -> None:
    """Write a model of this vocabulary with the byte tokenizer."""
    checkpoint.write(
        out,
        tensors=weights,
        dtype=dtype,
        config=config,
        generation={"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD},
        tokenizer=tokenizer(),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[2],
            "pad_token": SPECIALS[3],
            "model_max_length": MAX_POSITION,
            "clean_up_tokenization_spaces": False,
        },
        chat_template=_CHAT_TEMPLATE,
        force=force,
    )
