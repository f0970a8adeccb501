# SPDX-License-Identifier: Apache-2.0
"""`hotpath build`: compiles the per-step C++ for the installed torch and torch-npu.

Only says and starts; where builds live is `builds`'s, compiling is `builder`'s. The plugin finds
the result by itself.
"""

from __future__ import annotations

import os

import click

from vllm_ascend_mrv2.builds import HOTPATH, cache_root
from vllm_ascend_mrv2.cli.builder import ensure_built
from vllm_ascend_mrv2.cli.toolkit import find_stack, source_dir


@click.group()
def hotpath() -> None:
    """The per-step path in C++, which the plugin takes where it is built."""


@hotpath.command()
@click.option("--force", is_flag=True, help="Build even where an up-to-date one is there.")
def build(force: bool) -> None:
    """Compile the hot path for the installed torch and torch-npu; print its folder."""
    cache = cache_root(os.environ)
    built = ensure_built(source_dir(HOTPATH), find_stack(), cache, product=HOTPATH, force=force)
    click.echo(built.path)
