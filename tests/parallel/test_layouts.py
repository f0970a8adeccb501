# SPDX-License-Identifier: Apache-2.0
"""Every layout gives the reference's greedy tokens in float32, with graphs and eagerly.

The reference is transformers on one CPU, which one device equals too (tests/engine). The KV cache
is small enough that requests are preempted, prompts are chunked, async scheduling is on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine import prompts
from tests.engine.conftest import ServerPool
from tests.engine.references import assert_equal_but_for_ties
from tests.engine.test_exactness import MAX_TIE_SHARE, NEW_TOKENS, complete
from tests.parallel.layouts import LAYOUTS, Layout

pytestmark = pytest.mark.timeout(900)
EVERY = 2  # every second of the 32 prompts


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_tokens_are_the_references(
    layout: Layout, mode: str, servers: ServerPool, tiny: Callable[[str, str], Path]
) -> None:
    checkpoint = tiny(layout.family, "float32")
    asked = prompts.varied(checkpoint)[1::EVERY]  # the long ones
    more = ("--enforce-eager",) if mode == "eager" else ()
    server = servers.get(layout.spec(checkpoint, *more))
    served = complete(server, asked)
    assert_equal_but_for_ties(
        checkpoint, "float32", asked, served, NEW_TOKENS, MAX_TIE_SHARE["float32"]
    )
    if layout.data == 1:
        assert server.metric("vllm:num_preemptions_total") > 0, "no request was preempted"
    log = server.log.read_text(errors="replace")
    assert ("Graph capture:" in log) == (mode == "graph")
