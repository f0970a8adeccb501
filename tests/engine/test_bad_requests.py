# SPDX-License-Identifier: Apache-2.0
"""Requests that cannot be served: each gets a clear 400, and the server goes on serving."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.engine.cases import MAX_MODEL_LEN, Case
from tests.engine.conftest import ServerPool
from tests.engine.server import MODEL_NAME, Server
from tests.helpers.core_version import core_is_before

CASE = Case("qwen3", is_tight=True)
pytestmark = CASE.group


@pytest.fixture
def server(servers: ServerPool, checkpoint_of: Callable[[Case], Path]) -> Iterator[Server]:
    """The tiny server; after each test it must still answer as before."""
    server = servers.get(CASE.spec(checkpoint_of(CASE)))
    before = ask(server, prompt="still there?", max_tokens=4)
    yield server
    after = ask(server, prompt="still there?", max_tokens=4)
    assert after.status_code == before.status_code == 200
    assert after.json()["choices"][0]["text"] == before.json()["choices"][0]["text"]


def ask(server: Server, path: str = "completions", **request: Any) -> httpx.Response:
    body = {"model": MODEL_NAME, "temperature": 0, **request}
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=120)


@pytest.mark.parametrize("excess", [1, 1000])
def test_a_prompt_over_the_limit_is_refused_with_the_limit(server: Server, excess: int) -> None:
    prompt = [65] * (MAX_MODEL_LEN + excess)
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().completions.create(model=MODEL_NAME, prompt=prompt, max_tokens=1)
    assert str(MAX_MODEL_LEN) in str(caught.value)


def test_an_answer_ends_at_the_limit(server: Server) -> None:
    """Core shortens max_tokens to the room that the prompt leaves; before 0.32 it refuses."""
    answer = ask(server, prompt=[65] * (MAX_MODEL_LEN - 10), max_tokens=50, ignore_eos=True)
    if core_is_before("0.32"):
        assert answer.status_code == 400, answer.text
        assert str(MAX_MODEL_LEN) in answer.json()["error"]["message"]
        return
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["total_tokens"] == MAX_MODEL_LEN
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_prompt_at_the_limit_is_served(server: Server) -> None:
    answer = ask(server, prompt=[65] * (MAX_MODEL_LEN - 1), max_tokens=1, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["total_tokens"] == MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -7),
        ("min_p", 2),
        ("n", 0),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("stop", [""]),
        ("seed", "lucky"),
        ("logprobs", -5),
        ("logprobs", 100000),
        ("prompt", []),
        ("prompt", [10**9]),
        ("prompt", {"a": 1}),
        ("repetition_penalty", 0),
        ("presence_penalty", 9),
    ],
)
def test_an_invalid_value_is_refused_and_named(server: Server, field: str, value: Any) -> None:
    answer = ask(server, **{"prompt": "hello", "max_tokens": 4, field: value})
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"].lower()
    assert field in message or "token" in message, message


def test_a_request_for_what_is_refused_is_refused_alone(server: Server) -> None:
    answer = ask(server, prompt="hello", max_tokens=2, watermarking=True)
    if core_is_before("0.32"):
        # The default there, which says "where the engine has a watermark"; this one cannot.
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 400, answer.text
    assert "watermark" in answer.json()["error"]["message"].lower()


def test_bad_words_beyond_cores_table_are_refused_before_the_worker(server: Server) -> None:
    words = [(one + two) * 8 for one in "abcdefghij" for two in "abcdefghij"]  # 1600 tokens
    answer = ask(server, prompt="hello", max_tokens=2, bad_words=words)
    assert answer.status_code == 400, answer.text
    assert "bad_words have 1600 tokens" in answer.json()["error"]["message"]


def test_an_unknown_parameter_is_refused_by_the_client(server: Server) -> None:
    with pytest.raises(TypeError, match="temprature"):
        server.client().completions.create(model=MODEL_NAME, prompt="hello", temprature=1)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("completions", {"prompt": "hello"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_an_unknown_parameter_in_the_body_is_refused(
    server: Server, path: str, prompt: dict[str, Any]
) -> None:
    answer = ask(server, path, **prompt, max_tokens=4, temprature=3)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "'temprature'" in message
    assert "did you mean 'temperature'" in message


def test_a_parameter_that_only_openai_knows_changes_nothing(server: Server) -> None:
    """Clients send them (`store`, `metadata`), and core has always taken and ignored them."""
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "ignore_eos": True,
    }
    plain = ask(server, "chat/completions", **chat)
    extra = ask(server, "chat/completions", **chat, store=False, safety_identifier="x")
    assert extra.status_code == 200, extra.text
    content = [a.json()["choices"][0]["message"]["content"] for a in (plain, extra)]
    assert content[0] == content[1]


def test_a_body_that_is_no_json_is_refused(server: Server) -> None:
    answer = httpx.post(
        f"{server.url}/v1/completions",
        content=b'{"prompt": "hel',
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["message"]


def test_an_unknown_model_is_not_found(server: Server) -> None:
    answer = ask(server, model="another", prompt="hello")
    assert answer.status_code == 404
    assert "another" in answer.json()["error"]["message"]


def test_a_client_that_leaves_does_not_hold_its_request(server: Server) -> None:
    """The connection is cut in the middle of a long stream; the request must end with it."""
    with httpx.stream(
        "POST",
        f"{server.url}/v1/completions",
        json={"model": MODEL_NAME, "prompt": "hello", "max_tokens": 600, "stream": True}
        | {"ignore_eos": True},
        timeout=60,
    ) as stream:
        next(stream.iter_lines())
    for _ in range(100):
        if server.metric("vllm:num_requests_running") == 0:
            return
    pytest.fail("the request is still running although its client has left")
