# SPDX-License-Identifier: Apache-2.0
"""Stands in for the model hub where core's tests read a model's configuration and no more.

vLLM takes a name that is a folder below the working folder for that folder. Only configurations
whose every value is known are here; a test that loads weights or a tokenizer needs the hub itself.
"""

from __future__ import annotations

from pathlib import Path


def write_configurations(folder: Path) -> None:
    """Write each model's config.json below `folder`, where the tests run."""
    from transformers import OPTConfig

    # transformers' defaults for OPT are facebook/opt-125m's values.
    opt = OPTConfig(architectures=["OPTForCausalLM"], dtype="float16")
    opt.save_pretrained(folder / "facebook" / "opt-125m")
