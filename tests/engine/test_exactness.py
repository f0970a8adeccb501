# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens through the HTTP API are those of transformers on the CPU, token by token.

32 prompts at concurrency 8, chunked prefill and prefix caching on; also with a KV cache so small
that requests are preempted. Metrics prove that what is claimed happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine import prompts
from tests.engine.cases import SMOLLM2, SMOLLM2_TIGHT, TINY, TINY_TIGHT, Case
from tests.engine.conftest import ServerPool
from tests.engine.references import assert_equal_but_for_ties
from tests.engine.server import MODEL_NAME, Server

NEW_TOKENS = 48
CONCURRENCY = 8
# Largest shares of near ties seen when this was written: none in float32, 1.3 % in bfloat16.
MAX_TIE_SHARE = {"float32": 0.002, "bfloat16": 0.03}


def _param(case: Case, *more: pytest.MarkDecorator) -> object:
    return pytest.param(case, id=str(case), marks=[case.group, *more])


def _tight_param(case: Case) -> object:
    """A server is a start: the short form has one family in one dtype, the long one all."""
    in_short_form = case == Case("qwen3", is_tight=True)
    return _param(case) if in_short_form else _param(case, pytest.mark.long)


def complete(
    server: Server,
    asked: Sequence[Sequence[int]],
    new_tokens: int = NEW_TOKENS,
    headers: Mapping[str, str] | None = None,
) -> list[list[int]]:
    """Greedy continuations of `new_tokens` ids each, CONCURRENCY requests at a time."""
    client = server.client()

    def one(prompt: Sequence[int]) -> list[int]:
        answer = client.completions.create(
            model=MODEL_NAME,
            prompt=list(prompt),
            max_tokens=new_tokens,
            temperature=0,
            extra_headers=headers,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        return list(answer.choices[0].token_ids)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(one, asked))


def check(server: Server, case: Case, checkpoint: Path, asked: Sequence[Sequence[int]]) -> None:
    """Serve `asked` and compare with the reference."""
    assert_equal_but_for_ties(
        checkpoint,
        case.dtype,
        asked,
        complete(server, asked),
        NEW_TOKENS,
        MAX_TIE_SHARE[case.dtype],
    )


@pytest.mark.parametrize("case", [_param(case, pytest.mark.long) for case in TINY])
def test_tokens_are_the_references(
    case: Case, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    """In float32 the whole set twice: the second time its prompts come from the prefix cache."""
    checkpoint = checkpoint_of(case)
    server = servers.get(case.spec(checkpoint))
    asked = prompts.varied(checkpoint)
    check(server, case, checkpoint, asked)
    if case.dtype == "float32":
        hits = server.metric("vllm:prefix_cache_hits_total")
        check(server, case, checkpoint, asked)
        assert server.metric("vllm:prefix_cache_hits_total") > hits
    assert server.metric("vllm:num_preemptions_total") == 0


@pytest.mark.parametrize(
    "case", [_param(case, pytest.mark.long) for case in TINY if case.dtype == "float32"]
)
def test_shared_prefixes_are_taken_from_the_cache(
    case: Case, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    checkpoint = checkpoint_of(case)
    server = servers.get(case.spec(checkpoint))
    _check_shared_prefixes(server, case, checkpoint)


@pytest.mark.parametrize(
    "case",
    [_tight_param(case) for case in (*TINY_TIGHT, SMOLLM2_TIGHT)],
)
def test_tokens_are_the_references_under_preemption(
    case: Case, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    checkpoint = checkpoint_of(case)
    server = servers.get(case.spec(checkpoint))
    before = server.metric("vllm:num_preemptions_total")
    check(server, case, checkpoint, prompts.varied(checkpoint))
    assert server.metric("vllm:num_preemptions_total") > before, "no request was preempted"


@pytest.mark.parametrize(
    ("case", "every"),
    [
        pytest.param(SMOLLM2, 4, id="eight-prompts", marks=SMOLLM2.group),
        pytest.param(SMOLLM2, 1, id="all-prompts", marks=[SMOLLM2.group, pytest.mark.long]),
    ],
)
def test_tokens_of_a_real_model_are_the_references(
    case: Case, every: int, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    checkpoint = checkpoint_of(case)
    server = servers.get(case.spec(checkpoint))
    check(server, case, checkpoint, prompts.varied(checkpoint)[1::every][:32])


@pytest.mark.parametrize("case", [_param(SMOLLM2)])
def test_a_real_model_takes_shared_prefixes_from_the_cache(
    case: Case, servers: ServerPool, checkpoint_of: Callable[[Case], Path]
) -> None:
    checkpoint = checkpoint_of(case)
    server = servers.get(case.spec(checkpoint))
    _check_shared_prefixes(server, case, checkpoint)


def _check_shared_prefixes(server: Server, case: Case, checkpoint: Path) -> None:
    """The first prompt fills the cache; each of the others must then find whole blocks in it."""
    first, *others = prompts.sharing_a_prefix(checkpoint)
    check(server, case, checkpoint, [first])
    hits = server.metric("vllm:prefix_cache_hits_total")
    check(server, case, checkpoint, others)
    found = server.metric("vllm:prefix_cache_hits_total") - hits
    assert found >= len(others) * (prompts.SHARED_TOKENS // 128) * 128, f"{found} tokens were hits"
