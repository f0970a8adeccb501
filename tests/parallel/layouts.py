# SPDX-License-Identifier: Apache-2.0
"""The layouts over several devices that are served, each as a server's arguments. Data only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.cases import MAX_MODEL_LEN
from tests.engine.checkpoints import REPOSITORY
from tests.engine.server import ServerSpec

CHUNK_TOKENS = 96  # below long prompts, and no multiple of the block size
BLOCKS = 46  # two more than the longest request needs
# Ray's workers are 15 nice levels below what starts them: here they compute, beside the tests.
RAY = {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
SHARDED = ("--enable-batch-sharded-sampling",)
# Functions of these tests can be called in each rank (tests/parallel/in_ranks.py).
IN_RANKS = ("--worker-extension-cls", "tests.parallel.in_ranks.InRanks")


@dataclass(frozen=True)
class Layout:
    """`family` of the tiny checkpoint; numbers of ranks; `experts`: expert parallel; `api_servers`:
    processes that take requests, None for core's default (one for each data-parallel rank);
    `options`: more arguments; `cold_starts`: how often in a row it is started.
    """

    name: str
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    family: str = "qwen3"
    executor: str | None = None
    api_servers: int | None = 1
    options: tuple[str, ...] = ()
    cold_starts: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def arguments(self) -> tuple[str, ...]:
        sizes = (
            ("--tensor-parallel-size", self.tensor),
            ("--pipeline-parallel-size", self.pipeline),
            ("--data-parallel-size", self.data),
        )
        asked = [part for option, n in sizes if n > 1 for part in (option, str(n))]
        if self.data > 1 and self.api_servers is not None:
            asked += ["--api-server-count", str(self.api_servers)]
        if self.experts:
            asked.append("--enable-expert-parallel")
        if self.executor is not None:
            asked += ["--distributed-executor-backend", self.executor]
        return (*asked, *self.options)

    def spec(self, checkpoint: Path, *more: str, **environment: str) -> ServerSpec:
        """A server with a KV cache in which some requests of a full batch must give way."""
        paths = filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": os.pathsep.join(paths)}
        if self.executor == "ray":
            environment |= RAY
        return ServerSpec(
            checkpoint,
            "float32",
            (
                *self.arguments(),
                *("--max-model-len", str(MAX_MODEL_LEN)),
                *("--max-num-seqs", "8"),
                *("--max-num-batched-tokens", str(CHUNK_TOKENS)),
                *("--block-size", "16", "--num-gpu-blocks-override", str(BLOCKS)),
                *("--gpu-memory-utilization", "0.3"),
                *IN_RANKS,
                *more,
            ),
            tuple(environment.items()),
        )


LAYOUTS = (
    Layout("tp2", tensor=2, cold_starts=3),
    Layout("pp2", pipeline=2, cold_starts=3),
    Layout("dp2", data=2, api_servers=None, cold_starts=3),
    Layout("tp2-pp2", tensor=2, pipeline=2),
    Layout("tp2-dp2", tensor=2, data=2, cold_starts=3),
    Layout("tp2-ray", tensor=2, executor="ray", cold_starts=3),
    Layout("tp2-sharded", tensor=2, family="llama", options=SHARDED),
    Layout("tp2-pp2-sharded", tensor=2, pipeline=2, family="llama", options=SHARDED),
    Layout("tp2-dp2-sharded", tensor=2, data=2, family="llama", options=SHARDED),
    Layout("moe-tp2", tensor=2, family="qwen3_moe"),
    Layout("moe-ep2", tensor=2, experts=True, family="qwen3_moe", cold_starts=3),
    Layout("moe-dp2", data=2, family="qwen3_moe", cold_starts=3),
    Layout("moe-dp2-ep2", data=2, experts=True, family="qwen3_moe"),
    Layout("moe-tp2-dp2", tensor=2, data=2, family="qwen3_moe"),
)
BY_NAME = {layout.name: layout for layout in LAYOUTS}
MODES = {"graph": (), "eager": ("--enforce-eager",)}


def on_one_server(layout: Layout, mode: str) -> object:
    """A parameter of tests that share this layout's server, and so stand together."""
    name = f"{layout}-{mode}"
    return pytest.param(layout, mode, id=name, marks=pytest.mark.xdist_group(name))
