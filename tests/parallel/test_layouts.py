# SPDX-License-Identifier: Apache-2.0
"""Every layout, with graphs and eagerly: tokens, unequal load, what a step costs, and a clean end.

The reference is transformers on one CPU, which one device equals too (tests/engine). The KV cache
is small enough that requests are preempted, prompts are chunked, async scheduling is on. One
server of a layout and mode serves all of its tests here.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import prompts
from tests.engine.conftest import ServerPool
from tests.engine.references import assert_equal_but_for_ties
from tests.engine.server import MODEL_NAME, Server
from tests.engine.test_exactness import CONCURRENCY, MAX_TIE_SHARE, NEW_TOKENS, complete
from tests.parallel.ends import ranks, stops_and_leaves_nothing
from tests.parallel.layouts import LAYOUTS, MODES, Layout, on_one_server

pytestmark = pytest.mark.timeout(900)
LONG_PROMPTS = 4
REQUESTS = 200
SHORT_ANSWER = 24
STEADY_STEPS = 20
STEADY_REQUESTS = 4
BLOCK_TOKENS = 16
# As torch's library, and core's registries of operators and models, say it.
REGISTERED_TWICE = re.compile(r".*(?:previously|already) registered.*|.*[Dd]uplicate op.*")

EACH = [on_one_server(layout, mode) for layout in LAYOUTS for mode in MODES]
GRAPH = [on_one_server(layout, "graph") for layout in LAYOUTS]
DATA_PARALLEL = [on_one_server(layout, "graph") for layout in LAYOUTS if layout.data > 1]


def some_prompts(checkpoint: Path) -> list[list[int]]:
    """A few long ones, and then 16 of which eight fit together, but not with what they become.

    A request is admitted when there are blocks for its whole prompt.
    """
    varied = prompts.varied(checkpoint)
    short, long = varied[0::2], varied[1::2]
    return long[:LONG_PROMPTS] + sorted(short, key=len, reverse=True)


@pytest.fixture
def server(
    layout: Layout, mode: str, servers: ServerPool, tiny: Callable[[str, str], Path]
) -> Server:
    """Of this layout and mode, up from the test before where that had the same."""
    return servers.get(layout.spec(tiny(layout.family, "float32"), *MODES[mode]))


@contextmanager
def steps_counted(server: Server, folder: Path) -> Iterator[None]:
    """Every rank counts what each of its steps costs, and writes it into `folder` at the end."""

    def in_ranks(method: str, *args: str) -> None:
        asked = {"method": method, "args": list(args)}
        httpx.post(f"{server.url}/collective_rpc", json=asked, timeout=120).raise_for_status()

    in_ranks("mark_steps")
    try:
        yield
    finally:
        in_ranks("write_step_counts", str(folder))


def step_counts(folder: Path, layout: Layout) -> dict[str, Any]:
    """ENGINE-RANK -> what `InRanks.write_step_counts` wrote there."""
    counted = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert len(counted) == layout.ranks
    return counted


def requests_of_engines(server: Server, layout: Layout) -> list[float]:
    """How many requests each data-parallel engine has answered."""
    return [
        server.metric("vllm:request_success_total", engine=str(number))
        for number in range(layout.data)
    ]


@pytest.mark.parametrize(("layout", "mode"), EACH)
def test_tokens_are_the_references(layout: Layout, mode: str, server: Server) -> None:
    checkpoint = server.spec.checkpoint
    asked = some_prompts(checkpoint)
    served = complete(server, asked)
    assert_equal_but_for_ties(
        checkpoint, "float32", asked, served, NEW_TOKENS, MAX_TIE_SHARE["float32"]
    )
    if layout.data == 1:  # else each rank has the blocks for its half of them
        assert server.metric("vllm:num_preemptions_total") > 0, "no request was preempted"
    log = server.log.read_text(errors="replace")
    assert ("Graph capture:" in log) == (mode == "graph")
    assert "async scheduling │ on" in log


@pytest.mark.parametrize(("layout", "mode"), DATA_PARALLEL)
def test_one_rank_full_and_one_idle(
    layout: Layout, mode: str, server: Server, tmp_path: Path
) -> None:
    """All requests are one rank's: the idle one runs along where it must, nobody hangs."""
    chance = random.Random(31)
    asked = [
        [chance.randrange(256) for _ in range(chance.choice([1, 5, 40, 120]))]
        for _ in range(REQUESTS)
    ]
    with steps_counted(server, tmp_path):
        before = requests_of_engines(server, layout)
        served = complete(server, asked, SHORT_ANSWER, {"X-data-parallel-rank": "0"})
    assert_equal_but_for_ties(
        server.spec.checkpoint, "float32", asked, served, SHORT_ANSWER, MAX_TIE_SHARE["float32"]
    )
    taken = [n - m for n, m in zip(requests_of_engines(server, layout), before, strict=True)]
    assert taken == [REQUESTS] + [0] * (layout.data - 1)
    for rank, counted in step_counts(tmp_path, layout).items():
        if rank.startswith("0-"):
            assert len(counted["steps"]) > REQUESTS * SHORT_ANSWER / CONCURRENCY
            decodes = [step["replays"] for step in counted["steps"] if step["decodes"]]
            assert len(decodes) > len(counted["steps"]) / 4, rank  # a prompt begins in every third
            assert set(decodes) == {1}, rank
        else:
            assert not counted["steps"], (rank, counted)
            # Only ranks that share experts have something to run along with.
            assert (counted["replays"] > 0) == (layout.family == "qwen3_moe"), (rank, counted)


@pytest.mark.parametrize(("layout", "mode"), GRAPH)
def test_a_steady_step_waits_for_nothing_on_any_rank(
    layout: Layout, mode: str, server: Server, tmp_path: Path
) -> None:
    """Four requests for each engine, which start together and grow by a token in each step."""
    client = server.client()

    def one(number: int) -> None:
        client.completions.create(
            model=MODEL_NAME,
            prompt=[[5 + n, 9, 7] for n in range(STEADY_REQUESTS)],
            max_tokens=4 * STEADY_STEPS,
            temperature=0,
            extra_headers={"X-data-parallel-rank": str(number)} if layout.data > 1 else {},
            extra_body={"ignore_eos": True},
        )

    with steps_counted(server, tmp_path), ThreadPoolExecutor(layout.data) as pool:
        list(pool.map(one, range(layout.data)))
    for rank, counted in step_counts(tmp_path, layout).items():
        steady = counted["steps"][
            2 * STEADY_STEPS : 3 * STEADY_STEPS
        ]  # of engines that start apart, too
        assert len(steady) == STEADY_STEPS
        for step in steady:
            assert step["replays"] == 1, (rank, step)
            assert step["d2h"] == 0, (rank, step)  # the result is copied where it is awaited
            # What is copied is copied on a stream that has nothing else to do.
            assert step["waits"] == step["h2d"] <= 1, (rank, step)
        if layout.pipeline == 1:  # one graph for the whole step: only a new block is copied
            waits = sum(step["waits"] for step in steady)
            assert waits <= STEADY_REQUESTS * -(-STEADY_STEPS // BLOCK_TOKENS), (rank, steady)


@pytest.mark.parametrize(("layout", "mode"), EACH)
def test_it_stops_and_leaves_nothing(layout: Layout, mode: str, server: Server) -> None:
    """After each of its cold starts, in a row: the first is that of the tests above."""
    prompt = some_prompts(server.spec.checkpoint)[:1]
    answer = complete(server, prompt)
    for number in range(layout.cold_starts):
        if number > 0:
            server.start()
            assert complete(server, prompt) == answer
        assert len(ranks(server)) == layout.ranks
        log = server.log.read_text(errors="replace")
        assert not REGISTERED_TWICE.search(log), REGISTERED_TWICE.findall(log)
        stops_and_leaves_nothing(server)
