# SPDX-License-Identifier: Apache-2.0
"""Structured outputs over HTTP: answers are valid, whatever the schema; what is broken is a 400."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.engine.cases import GRAMMARS, Case
from tests.engine.conftest import ServerPool
from tests.engine.schemas import BROKEN, growing
from tests.engine.server import MODEL_NAME, Server, ServerSpec

CASE = Case("qwen3", is_tight=True)
SOME = tuple(range(0, 60, 6))
ALL = tuple(reversed(range(200)))  # the longest first: fewer steps in which one alone is left
AT_ONCE = 64
ROOM_TOKENS = 2048  # a byte is a token, and the largest answer has about a thousand


@pytest.fixture
def server(servers: ServerPool, checkpoint_of: Callable[[Case], Path]) -> Server:
    return servers.get(CASE.spec(checkpoint_of(CASE)))


def ask(server: Server, path: str = "completions", **request: Any) -> httpx.Response:
    body = {"model": MODEL_NAME, **request}
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=900)


def assert_valid(server: Server, numbers: tuple[int, ...], max_tokens: int, at_once: int) -> None:
    """Ask for a document of each schema, hot, and hold it against that."""

    def one(number: int) -> httpx.Response:
        schema = {"name": "document", "schema": growing(number)}
        return ask(
            server,
            "chat/completions",
            messages=[{"role": "user", "content": f"document {number}"}],
            response_format={"type": "json_schema", "json_schema": schema},
            temperature=1.0,
            seed=number,
            max_tokens=max_tokens,
        )

    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(one, numbers))
    for number, answer in zip(numbers, answers, strict=True):
        assert answer.status_code == 200, (number, answer.text)
        choice = answer.json()["choices"][0]
        assert choice["finish_reason"] == "stop", (number, choice)
        document = json.loads(choice["message"]["content"])
        jsonschema.validate(document, growing(number), jsonschema.Draft202012Validator)


@CASE.group
def test_documents_are_valid(server: Server) -> None:
    assert_valid(server, SOME, max_tokens=600, at_once=8)


@pytest.mark.long
@pytest.mark.xdist_group("server-schemas")
def test_documents_of_two_hundred_schemas_are_valid(
    servers: ServerPool, tiny: Callable[[str, str], Path]
) -> None:
    room = ("--num-gpu-blocks-override", str(AT_ONCE * ROOM_TOKENS // 128))
    length = ("--max-model-len", str(ROOM_TOKENS), "--max-num-seqs", str(AT_ONCE))
    memory = ("--gpu-memory-utilization", "0.3")
    arguments = (*length, *room, *memory, *GRAMMARS)
    spec = ServerSpec(tiny("qwen3", "float32"), "float32", arguments)
    assert_valid(servers.get(spec), ALL, max_tokens=ROOM_TOKENS - 64, at_once=AT_ONCE)


@CASE.group
@pytest.mark.parametrize("structure", BROKEN, ids=lambda structure: json.dumps(structure))
def test_what_is_broken_is_a_bad_request(server: Server, structure: dict[str, Any]) -> None:
    answer = ask(server, prompt="hello", max_tokens=4, structured_outputs=structure)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


@CASE.group
def test_a_broken_response_format_is_a_bad_request(server: Server) -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "#/nowhere"}):
        answer = ask(
            server,
            "chat/completions",
            messages=[{"role": "user", "content": "hello"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            },
        )
        assert answer.status_code == 400, answer.text
    assert ask(server, prompt="hello", max_tokens=2).status_code == 200
