# SPDX-License-Identifier: Apache-2.0
"""Random LoRA adapters in PEFT's format, and checkpoints with one merged into the weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
VOCABULARY = ("embed_tokens", "lm_head")


@dataclass(frozen=True)
class Adapter:
    """One adapter: low-rank additions to the layers named by `targets`."""

    seed: int
    rank: int
    alpha: int
    targets: tuple[str, ...]

    def products(self, base: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Name of each changed weight [out, in] of `base` -> A [rank, in], B [out, rank].

        Of an embedding [vocabulary, hidden] the table's transpose is the weight, as PEFT has it.
        """
        rng = np.random.default_rng(self.seed)
        made = {}
        for name, weight in sorted(load_file(base / "model.safetensors").items()):
            if name.split(".")[-2] in self.targets:
                rows, columns = weight.T.shape if _is_embedding(name) else weight.shape
                a = rng.standard_normal((self.rank, columns)) / np.sqrt(columns)
                b = rng.standard_normal((rows, self.rank)) / np.sqrt(self.rank)
                made[name] = a.astype(np.float32), b.astype(np.float32)
        return made

    def write(self, base: Path, folder: Path) -> Path:
        """The adapter as PEFT saves it."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": list(self.targets),
            "bias": "none",
            "base_model_name_or_path": str(base),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        tensors = {}
        for name, (a, b) in self.products(base).items():
            module = f"base_model.model.{name.removesuffix('.weight')}"
            form = ".lora_embedding_{}" if _is_embedding(name) else ".lora_{}.weight"
            tensors[module + form.format("A")] = a
            tensors[module + form.format("B")] = b
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    def merge(self, base: Path, folder: Path) -> Path:
        """`base` (float32) with the adapter added to its weights."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in base.iterdir():
            if path.name != "model.safetensors":
                (folder / path.name).write_bytes(path.read_bytes())
        weights = load_file(base / "model.safetensors")
        for name, (a, b) in self.products(base).items():
            added = np.float32(self.alpha / self.rank) * (b @ a)
            weights[name] = weights[name] + (added.T if _is_embedding(name) else added)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def _is_embedding(name: str) -> bool:
    return name.endswith("embed_tokens.weight")
