# SPDX-License-Identifier: Apache-2.0
"""The servers that engine tests share: which checkpoint, dtype and KV cache each one has.

A test file that can do with one of these starts no server of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.checkpoints import FAMILIES
from tests.engine.server import ServerSpec

# Compact, since a random model would write white space without end.
GRAMMARS = (
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
)
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CHUNK_TOKENS = 160  # below most prompts, and no multiple of the block size
MAX_MODEL_LEN = 704
SHUTDOWN_TIMEOUT_S = 15  # for requests that are running when the server is told to stop


@dataclass(frozen=True)
class Case:
    """One server. `model` is a tiny family or "smollm2"."""

    model: str
    dtype: str = "float32"
    is_tight: bool = False

    def __str__(self) -> str:
        return f"{self.model}-{self.dtype}{'-tight' if self.is_tight else ''}"

    def spec(self, checkpoint: Path) -> ServerSpec:
        """Roomy: every request fits. Tight: 8 requests grow until some must give way."""
        room = ("--num-gpu-blocks-override", "96")
        if self.is_tight:
            room = ("--block-size", "16", "--num-gpu-blocks-override", "72")
        return ServerSpec(
            checkpoint,
            self.dtype,
            (
                *("--max-model-len", str(MAX_MODEL_LEN)),
                *("--max-num-seqs", "16"),
                *("--max-num-batched-tokens", str(CHUNK_TOKENS)),
                *("--enable-chunked-prefill", "--enable-prefix-caching"),
                *("--gpu-memory-utilization", "0.3"),
                *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)),
                *GRAMMARS,
                *TOOLS,
                *room,
            ),
        )

    @property
    def group(self) -> pytest.MarkDecorator:
        """Marks a test as one of this server's."""
        return pytest.mark.xdist_group(f"server-{self}")


# Not a mixture of experts in bfloat16: where a router is all but undecided, rounding chooses the
# experts, and a right implementation may differ from transformers in all that follows.
TINY = [
    Case(family, dtype)
    for dtype in ("float32", "bfloat16")
    for family in FAMILIES
    if (family, dtype) != ("qwen3_moe", "bfloat16")
]
TINY_TIGHT = [Case(case.model, case.dtype, is_tight=True) for case in TINY]
SMOLLM2 = Case("smollm2")
SMOLLM2_TIGHT = Case("smollm2", is_tight=True)
