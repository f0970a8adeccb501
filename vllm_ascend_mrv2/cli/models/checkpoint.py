# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint folder: safetensors, configuration, tokenizer; all of it or none.

Knows no model. Arrays come in as float32 and are rounded to the wanted dtype here.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from vllm_ascend_mrv2.cli.console import CliError

Array = np.ndarray[Any, np.dtype[np.float32]]


def to_bfloat16(array: Array) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The bits of `array` in bfloat16, rounded to nearest even, as torch does. Finite values only.

    Any shape, float32; the result has the same shape.
    """
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, Array], dtype: str) -> None:
    """Write arrays in safetensors' format, all in `dtype` ("float32" or "bfloat16").

    The format is a JSON header with a length in front and the raw data behind; the library that
    reads it changed how it wants to be told between 0.7 and 0.8.
    """
    code, width = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.size * width
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # readers map the data: keep it aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in tensors.values():
            flat = to_bfloat16(array) if dtype == "bfloat16" else np.asarray(array, np.float32)
            file.write(np.ascontiguousarray(flat).astype(flat.dtype.newbyteorder("<")).tobytes())


def write(
    out: Path,
    *,
    tensors: Mapping[str, Array],
    dtype: str,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: Tokenizer,
    tokenizer_config: Mapping[str, Any],
    chat_template: str,
    force: bool,
) -> None:
    """Write the folder `out`. Raises CliError if it is there and `force` is off.

    `dtype` is "float32" or "bfloat16", of all tensors and of the configuration.
    """
    refuse_existing(out, force)
    with placing(out) as partial:
        write_safetensors(partial / "model.safetensors", tensors, dtype)
        tokenizer.save(str(partial / "tokenizer.json"))
        for name, content in (
            ("config.json", {**config, "dtype": dtype}),
            ("generation_config.json", generation),
            ("tokenizer_config.json", tokenizer_config),
        ):
            (partial / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (partial / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


@contextmanager
def placing(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends well, and else is gone."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        partial.chmod(0o777 & ~_umask())
        yield partial
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def refuse_existing(out: Path, force: bool) -> None:
    """Raise CliError where `out` is a checkpoint or other folder that is not to be replaced.

    Even with `force`, a folder that is no checkpoint is never removed.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not force:
        raise CliError(f"{out} is there already.", do="Add --force to replace it.")
    if not (out / "config.json").is_file():
        raise CliError(
            f"{out} is not a checkpoint, so it is not replaced.",
            why="it has no config.json",
            do="Name another folder.",
        )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
