# SPDX-License-Identifier: Apache-2.0
"""What OpenAI clients and curl ask of a server with a real model: SmolLM2-135M-Instruct, float32.

Forms of requests and sampling. Whether the tokens are right is test_exactness.py's.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.cases import SMOLLM2, Case
from tests.engine.conftest import ServerPool
from tests.engine.server import MODEL_NAME, Server

pytestmark = SMOLLM2.group

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
ANIMALS = (
    *("fox", "bear", "crow", "hare", "toad", "wolf", "lynx", "seal"),
    *("hawk", "mole", "newt", "swan", "goat", "deer", "carp", "moth"),
)
STORY = "Once upon a time, in a village by the sea, there lived"


@pytest.fixture
def server(servers: ServerPool, checkpoint_of: Callable[[Case], Path]) -> Server:
    return servers.get(SMOLLM2.spec(checkpoint_of(SMOLLM2)))


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.client()


def text_of(client: openai.OpenAI, prompt: str = STORY, **request: Any) -> str:
    """The text of one completion of `prompt`, 16 tokens unless told otherwise."""
    request = {"max_tokens": 16, **request}
    answer = client.completions.create(model=MODEL_NAME, prompt=prompt, **request)
    return answer.choices[0].text


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_chat_names_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=CAPITAL, temperature=0, max_tokens=24
    )
    choice = answer.choices[0]
    assert "Paris" in choice.message.content
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_curl_gets_the_same_chat_answer(client: openai.OpenAI, server: Server) -> None:
    request = {"model": MODEL_NAME, "messages": CAPITAL, "temperature": 0, "max_tokens": 24}
    ran = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "120"),
            *("-H", "Content-Type: application/json", "-d", json.dumps(request)),
            f"{server.url}/v1/chat/completions",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    by_curl = json.loads(ran.stdout)["choices"][0]["message"]["content"]
    assert by_curl == client.chat.completions.create(**request).choices[0].message.content
    assert "Paris" in by_curl


def test_streamed_chunks_join_to_the_whole_completion(client: openai.OpenAI) -> None:
    request = {"model": MODEL_NAME, "prompt": STORY, "temperature": 0, "max_tokens": 32}
    whole = client.completions.create(**request).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**request, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) > 8, "the answer came in a few large pieces: not streamed"
    assert chunks[-1].finish_reason == whole.finish_reason == "length"


def test_streamed_chunks_join_to_the_whole_chat_answer(client: openai.OpenAI) -> None:
    request = {"model": MODEL_NAME, "messages": CAPITAL, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**request)
    stream = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == whole.choices[0].message.content
    assert last.usage == whole.usage


def test_greedy_repeats_and_n_gives_several_answers(client: openai.OpenAI) -> None:
    assert text_of(client, temperature=0) == text_of(client, temperature=0)
    answer = client.completions.create(
        model=MODEL_NAME, prompt=STORY, n=2, temperature=1.0, seed=3, max_tokens=24
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    first, second = (choice.text for choice in answer.choices)
    assert first
    assert second
    assert first != second


def test_stop_strings_end_the_text_before_them(client: openai.OpenAI) -> None:
    request = {"model": MODEL_NAME, "prompt": STORY, "temperature": 0, "max_tokens": 32}
    whole = client.completions.create(**request).choices[0].text
    stop = whole.split()[4]
    choice = client.completions.create(**request, stop=[stop, "\x00never"]).choices[0]
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    kept = client.completions.create(
        **request, stop=stop, extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].text == whole[: whole.index(stop) + len(stop)]


def test_a_seed_decides_the_text(client: openai.OpenAI) -> None:
    texts = {seed: text_of(client, temperature=1.0, seed=seed) for seed in (1, 2, 3, 4)}
    assert len(set(texts.values())) == len(texts)
    assert {seed: text_of(client, temperature=1.0, seed=seed) for seed in texts} == texts


def test_a_seed_decides_the_text_in_any_company(client: openai.OpenAI) -> None:
    """Other requests in the batch do not reach into a seeded request's random numbers."""
    alone = text_of(client, temperature=1.0, seed=11)
    with ThreadPoolExecutor(6) as pool:
        company = [
            pool.submit(text_of, client, f"{n} apples", temperature=1.2, max_tokens=n + 4)
            for n in range(5)
        ]
        together = pool.submit(text_of, client, temperature=1.0, seed=11).result()
        for other in company:
            assert other.result()
    assert together == alone


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    assert len({text_of(client, temperature=1.0) for _ in range(4)}) > 1


@pytest.mark.parametrize(
    "only_the_best",
    [
        {"top_p": 1e-6},
        {"extra_body": {"top_k": 1}},
        {"extra_body": {"min_p": 1.0}},
        {"extra_body": {"top_k": 1, "top_p": 0.5, "min_p": 0.5}},
    ],
    ids=["top_p", "top_k", "min_p", "all"],
)
def test_narrowest_filters_give_the_greedy_text(
    client: openai.OpenAI, only_the_best: dict[str, Any]
) -> None:
    greedy = text_of(client, temperature=0)
    assert text_of(client, temperature=1.0, seed=5, **only_the_best) == greedy


@pytest.mark.parametrize("top_k", [2, 5])
def test_top_k_samples_among_the_best_k(client: openai.OpenAI, top_k: int) -> None:
    """One new token, hot: every answer is among the k best by logprob, and more than one occurs."""
    best = client.completions.create(
        model=MODEL_NAME, prompt=STORY, max_tokens=1, temperature=0, logprobs=5
    )
    ranked = sorted(
        best.choices[0].logprobs.top_logprobs[0].items(), key=lambda item: item[1], reverse=True
    )
    allowed = {token for token, _ in ranked[:top_k]}
    request = {"max_tokens": 1, "temperature": 2.0, "extra_body": {"top_k": top_k}}
    seen = {text_of(client, seed=seed, **request) for seed in range(24)}
    assert seen <= allowed
    assert len(seen) > 1


def test_temperature_spreads_the_answers(client: openai.OpenAI) -> None:
    def distinct(temperature: float) -> int:
        request = {"max_tokens": 1, "temperature": temperature}
        return len({text_of(client, seed=seed, **request) for seed in range(16)})

    assert distinct(0.05) <= 2
    assert distinct(2.0) >= 6


def test_logprobs_are_those_of_the_greedy_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME,
        messages=CAPITAL,
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=3,
    )
    entries = answer.choices[0].logprobs.content
    text = "".join(entry.token for entry in entries)
    assert text.removesuffix("<|im_end|>") == answer.choices[0].message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    # Without `strict` core leaves the arguments to the model.
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": WEATHER, "strict": True},
    },
    {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    },
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("tool_choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_tool_is_called_with_arguments_of_its_schema(
    client: openai.OpenAI, tool_choice: Any
) -> None:
    request: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "What is the weather in Rome for two days?"}],
        "tools": TOOLS if tool_choice == NAMED else TOOLS[:1],
        "tool_choice": tool_choice,
        "temperature": 0,
        "max_tokens": 100,
    }
    message = client.chat.completions.create(**request).choices[0].message
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert arguments["city"] == "Rome"
    assert 1 <= arguments["days"] <= 9
    assert len(arguments) == 2
    parts = [
        part.function
        for chunk in client.chat.completions.create(**request, stream=True)
        for choice in chunk.choices
        for part in choice.delta.tool_calls or ()
    ]
    assert json.loads("".join(part.arguments or "" for part in parts)) == arguments
    assert [part.name for part in parts if part.name] == ["get_weather"]


def test_a_client_may_offer_tools_and_get_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=CAPITAL, tools=TOOLS, tool_choice="none", max_tokens=8
    )
    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].message.content


def test_beam_search_gives_its_beams_the_best_first(client: openai.OpenAI) -> None:
    def asked(beams: int) -> list[str]:
        answer = client.completions.create(
            model=MODEL_NAME,
            prompt=STORY,
            max_tokens=6,
            temperature=0,
            n=beams,
            extra_body={"use_beam_search": True},
        )
        return [choice.text for choice in answer.choices]

    assert len(set(asked(3))) == 3
    assert asked(1) == [text_of(client, temperature=0, max_tokens=6)]


def test_sixteen_requests_at_once_get_what_each_gets_alone(client: openai.OpenAI) -> None:
    asked = [f"{STORY} {'and ' * n}a {animal}" for n, animal in enumerate(ANIMALS)]
    with ThreadPoolExecutor(16) as pool:
        together = list(
            pool.map(lambda prompt: text_of(client, prompt, temperature=0, max_tokens=12), asked)
        )
    assert all(together)
    alone = [text_of(client, prompt, temperature=0, max_tokens=12) for prompt in asked[:4]]
    assert together[:4] == alone
