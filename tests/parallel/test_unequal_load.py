# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks with all requests on one of them: the idle one runs along, nobody hangs."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.conftest import ServerPool
from tests.engine.server import MODEL_NAME
from tests.parallel.layouts import BY_NAME

REQUESTS = 200
CONCURRENCY = 12
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("name", ["dp2", "moe-dp2", "moe-dp2-ep2"])
def test_one_rank_full_and_one_idle(
    name: str, servers: ServerPool, tiny: Callable[[str, str], Path]
) -> None:
    layout = BY_NAME[name]
    server = servers.get(layout.spec(tiny(layout.family, "float32")))
    client = server.client()
    chance = random.Random(31)
    asked = [
        (
            [chance.randrange(256) for _ in range(chance.choice([1, 5, 40, 120]))],
            chance.randrange(2, 24),
        )
        for _ in range(REQUESTS)
    ]

    def one(request: tuple[list[int], int]) -> int:
        prompt, count = request
        answer = client.completions.create(
            model=MODEL_NAME,
            prompt=prompt,
            max_tokens=count,
            temperature=0,
            extra_headers={"X-data-parallel-rank": "0"},
            extra_body={"ignore_eos": True},
        )
        return answer.usage.completion_tokens

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        assert list(pool.map(one, asked)) == [count for _, count in asked]
