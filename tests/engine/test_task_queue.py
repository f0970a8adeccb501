# SPDX-License-Identifier: Apache-2.0
"""TASK_QUEUE_ENABLE 0 and 1 serve the reference's tokens; 2 is refused (see test_refusals.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine import prompts
from tests.engine.cases import Case
from tests.engine.conftest import ServerPool
from tests.engine.test_exactness import check

CASE = Case("qwen3", is_tight=True)
pytestmark = pytest.mark.long  # a start each


@pytest.mark.parametrize(
    "task_queue",
    [
        pytest.param("0", marks=pytest.mark.xdist_group("task-queue-0")),
        # torch_npu's default, and so what every other test has
        pytest.param("1", marks=pytest.mark.xdist_group("task-queue-1")),
    ],
)
def test_tokens_are_the_references(
    task_queue: str, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    checkpoint = checkpoint_of(CASE)
    spec = replace(CASE.spec(checkpoint), environment=(("TASK_QUEUE_ENABLE", task_queue),))
    check(servers.get(spec), CASE, checkpoint, prompts.varied(checkpoint)[::4])
