# SPDX-License-Identifier: Apache-2.0
"""What else a request may ask for, in one engine that has every option on, with graphs.

Each feature is held against an independent answer: core's sampler with core's kernels and
transformers' logits, another request that must say the same, or a search written out.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.engine import in_process
from tests.engine.conftest import ServerPool
from tests.engine.core_semantics import TOLERANCE, assert_core_s
from tests.engine.server import MODEL_NAME, ServerSpec
from tests.helpers.combinations import sampling_params
from tests.helpers.core_oracle import CoreOracle
from tests.helpers.core_version import core_is_before
from tests.helpers.kernel_fixtures import oracle  # noqa: F401

pytestmark = pytest.mark.xdist_group("request-features")

GREEDY = {"temperature": 0.0}
RANDOM = {"temperature": 0.9, "seed": 3}
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
BACKENDS = (
    "xgrammar",
    "guidance",
    pytest.param(
        "outlines",
        marks=pytest.mark.skipif(
            core_is_before("0.31"),
            reason="core 0.30 rejects the end of a document by outlines, on every device",
        ),
    ),
)


class Engine:
    """An engine in this process; `ask` answers requests that run together."""

    def __init__(self, checkpoint: Path, llm: Any) -> None:
        self.checkpoint, self.llm = checkpoint, llm
        self.core = in_process.core_of(llm)
        self.runner = in_process.runner_of(llm)

    def ask(self, *requests: tuple[Any, dict[str, Any]]) -> list[Any]:
        """(prompt token ids or vLLM's prompt, arguments of SamplingParams) -> outputs."""
        prompts, params = [], []
        for prompt, asked in requests:
            prompts.append({"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt)
            params.append(sampling_params({"max_tokens": 6, "ignore_eos": True, **asked}))
        return self.llm.generate(prompts, params, use_tqdm=False)

    def tokens(self, *requests: tuple[Any, dict[str, Any]]) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.ask(*requests)]

    @contextmanager
    def with_options(self, **options: Any) -> Iterator[None]:
        """Attributes of the sampler and its neighbours that engine options set and steps read."""
        holders = (self.runner.sampler, self.runner.prompt_logprobs_worker, self.core.scheduler)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in options.items():
                held = [holder for holder in holders if hasattr(holder, name)]
                assert held, name
                for holder in held:
                    patch.setattr(holder, name, value)
            yield


# Core 0.30's Model Runner V2 refuses them itself.
CORE_HAS_PROCESSORS = not core_is_before("0.31")
PROCESSOR = "tests.engine.added_logit:AddedLogit"

OPTIONS: dict[str, Any] = {
    "num_gpu_blocks_override": 160,
    "enable_prompt_embeds": True,
    "enable_trace_replay": True,
    "logits_processors": [PROCESSOR] if CORE_HAS_PROCESSORS else None,
    "reasoning_config": {
        "reasoning_start_str": "<|im_start|>",
        "reasoning_end_str": "<|im_end|>",
    },
}


@pytest.fixture(scope="module", params=["graphs", pytest.param("eager", marks=pytest.mark.long)])
def engine(tiny: Callable[[str, str], Path], request: pytest.FixtureRequest) -> Iterator[Engine]:
    checkpoint = tiny("qwen3", "float32")
    with in_process.engine(checkpoint, enforce_eager=request.param == "eager", **OPTIONS) as llm:
        yield Engine(checkpoint, llm)


def prompt_of(length: int, case: int = 0) -> list[int]:
    rng = random.Random(100 * case + length)
    return [rng.randrange(256) for _ in range(length)]


# -- prompts ---------------------------------------------------------------------------------------


def test_embedded_prompts_are_their_tokens(engine: Engine) -> None:
    """One of them longer than a step's tokens, in a batch with prompts of tokens."""
    table = engine.runner.model.model.embed_tokens.weight.detach().cpu()
    prompts = [prompt_of(length) for length in (1, 17, 150, 40)]
    embedded = [({"prompt_embeds": table[torch.tensor(prompt)]}, RANDOM) for prompt in prompts]
    plain = [(prompt, RANDOM) for prompt in prompts]
    wanted = engine.tokens(*plain)
    assert engine.tokens(*embedded, *plain) == wanted * 2
    half = [position % 2 == 0 for position in range(40)]
    mixed = {
        "prompt_embeds": table[torch.tensor(prompts[3])],
        "prompt_token_ids": [
            t if is_token else 0 for t, is_token in zip(prompts[3], half, strict=True)
        ],
        "prompt_is_token_ids": half,
    }
    assert engine.tokens((mixed, RANDOM)) == wanted[3:]


def test_embeddings_of_no_token(engine: Engine, oracle: CoreOracle) -> None:  # noqa: F811
    generator = torch.Generator().manual_seed(4)
    embeddings = torch.randn(23, 128, generator=generator)
    made = engine.tokens(({"prompt_embeds": embeddings}, GREEDY), (prompt_of(30), RANDOM))[0]
    wanted, _ = oracle.call(
        "tests.helpers.teacher_forced.greedy_after", str(engine.checkpoint), embeddings, 6
    )
    assert made == wanted
    other = engine.tokens(({"prompt_embeds": -embeddings}, GREEDY))[0]
    assert other != made, "the prefix cache took one embedding for another"


@pytest.mark.long
@pytest.mark.xdist_group("server-embeds")
@pytest.mark.parametrize("how", [("--enforce-eager",), ()], ids=["eager", "graphs"])
def test_embedded_prompts_over_http(
    servers: ServerPool, tiny: Callable[[str, str], Path], how: tuple[str, ...]
) -> None:
    checkpoint = tiny("qwen3", "float32")
    room = ("--num-gpu-blocks-override", "40", "--gpu-memory-utilization", "0.3")
    sizes = ("--max-model-len", "320", "--max-num-seqs", "8", "--max-num-batched-tokens", "96")
    spec = ServerSpec(checkpoint, "float32", ("--enable-prompt-embeds", *how, *room, *sizes))
    client = servers.get(spec).client()
    table = torch.from_numpy(
        load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    )

    def answer(prompt: list[int], is_embedded: bool) -> list[int]:
        more: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
        if is_embedded:
            saved = io.BytesIO()
            torch.save(table[torch.tensor(prompt)], saved)
            more["prompt_embeds"] = base64.b64encode(saved.getvalue()).decode()
        made = client.completions.create(
            model=MODEL_NAME,
            prompt=None if is_embedded else prompt,
            max_tokens=12,
            temperature=0.8,
            seed=4,
            extra_body=more,
        )
        return list(made.choices[0].token_ids)

    prompts = [prompt_of(length) for length in (1, 17, 150, 40, 96, 97)]
    with ThreadPoolExecutor(12) as pool:
        embedded = pool.map(lambda prompt: answer(prompt, True), prompts)
        plain = pool.map(lambda prompt: answer(prompt, False), prompts)
        assert list(embedded) == list(plain)


# -- sampling --------------------------------------------------------------------------------------


def test_several_answers_are_those_of_following_seeds(engine: Engine) -> None:
    prompt = prompt_of(20)
    (output,) = engine.ask((prompt, {**RANDOM, "n": 3}))
    alone = engine.tokens(*((prompt, {**RANDOM, "seed": 3 + index}) for index in range(3)))
    assert [list(answer.token_ids) for answer in output.outputs] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


def test_a_custom_processor_changes_its_own_request_alone(
    engine: Engine, engine_config: Callable[..., Any]
) -> None:
    from vllm.exceptions import VLLMValidationError

    if not CORE_HAS_PROCESSORS:
        asked = ("--model", str(engine.checkpoint), "--logits-processors", PROCESSOR)
        with pytest.raises(ValueError, match="does not yet support: custom logits processors"):
            engine_config(*asked)
        return
    prompt = prompt_of(33)
    biased = {"extra_args": {"added_logit": [200, 2.5]}}
    for asked in (GREEDY, RANDOM, {"temperature": 1.0, "seed": 9}):
        mine, bystander, plain, by_bias = engine.tokens(
            (prompt, {**asked, **biased}),
            (prompt, asked),
            (prompt, {**asked, "extra_args": {"other": 1}}),
            (prompt, {**asked, "logit_bias": {200: 2.5}}),
        )
        assert mine == by_bias
        assert bystander == plain == engine.tokens((prompt, asked))[0]
    always = engine.tokens((prompt, {**GREEDY, "extra_args": {"added_logit": [200, 1e4]}}))
    assert always == [[200] * 6]
    with pytest.raises(VLLMValidationError, match="added_logit must be"):
        engine.ask((prompt, {**GREEDY, "extra_args": {"added_logit": [1]}}))


def test_a_trace_is_replayed_with_the_model_s_own_log_probabilities(
    engine: Engine,
    oracle: CoreOracle,  # noqa: F811
) -> None:
    prompt, trace = prompt_of(25), [5, 250, 7, 7, 31]
    traced, free = engine.ask(
        (prompt, {**GREEDY, "trace_decode_token_ids": trace, "logprobs": 0}), (prompt, RANDOM)
    )
    answer = traced.outputs[0]
    assert list(answer.token_ids) == trace
    (logits, _), _ = oracle.call(
        "tests.helpers.teacher_forced.logits", str(engine.checkpoint), [prompt], [trace]
    )
    wanted = torch.log_softmax(logits[:, 0], dim=-1).gather(1, torch.tensor(trace)[:, None])
    made = [entry[token].logprob for entry, token in zip(answer.logprobs, trace, strict=True)]
    assert made == pytest.approx(wanted.flatten().tolist(), abs=TOLERANCE)
    assert list(free.outputs[0].token_ids) == engine.tokens((prompt, RANDOM))[0]


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_of_every_mode(
    engine: Engine,
    oracle: CoreOracle,  # noqa: F811
    mode: str,
) -> None:
    asked: list[dict[str, Any]] = [
        {**GREEDY, "logprobs": 4},
        {**RANDOM, "logprobs": 2, "top_k": 30, "logit_bias": {9: 3.0}},
        {**RANDOM, "logprob_token_ids": [4, 8, 15, 260]},
        {**RANDOM, "logprobs": 0, "repetition_penalty": 1.3},
    ]
    prompts = [prompt_of(11, case) for case in range(len(asked))]
    with engine.with_options(logprobs_mode=mode):
        outputs = engine.ask(*zip(prompts, asked, strict=True), (prompt_of(60), RANDOM))
        prompted = engine.ask((prompts[0], {**GREEDY, "prompt_logprobs": 3, "max_tokens": 1}))[0]
    answers = [output.outputs[0] for output in outputs[: len(asked)]]
    assert_core_s(oracle, engine.checkpoint, prompts, asked, answers, logprobs_mode=mode)
    (_, (scores,)), _ = oracle.call(
        "tests.helpers.teacher_forced.logits", str(engine.checkpoint), [prompts[0]], [[0]]
    )
    if not mode.endswith("logits"):
        scores = torch.log_softmax(scores, dim=-1)
    for position, entry in enumerate(prompted.prompt_logprobs[1:]):
        assert len(entry) >= 3
        for token, score in entry.items():
            assert score.logprob == pytest.approx(float(scores[position, token]), abs=TOLERANCE)


def test_sampling_masks_are_the_tokens_that_could_have_been_drawn(engine: Engine) -> None:
    asked = {**RANDOM, "top_k": 12, "top_p": 0.8, "logprobs": 12, "logit_bias": {40: 1.0}}
    with engine.with_options(logprobs_mode="processed_logprobs", return_sampling_mask=True):
        output = engine.ask((prompt_of(18), asked), (prompt_of(19), {**RANDOM, "top_k": 3}))[0]
    answer = output.outputs[0]
    assert len(answer.sampling_mask.token_ids) == len(answer.token_ids)
    for kept, token, scores in zip(
        answer.sampling_mask.token_ids, answer.token_ids, answer.logprobs, strict=True
    ):
        possible = {t for t, score in scores.items() if np.isfinite(score.logprob)}
        assert set(kept) == possible
        assert token in possible
        assert 1 <= len(kept) <= 12


def test_the_sampling_mask_s_own_option_is_accepted(
    engine_config: Callable[..., Any], tiny: Callable[[str, str], Path]
) -> None:
    mode = ("--logprobs-mode", "processed_logprobs")
    model = str(tiny("qwen3", "float32"))
    config = engine_config("--model", model, "--return-sampling-mask", *mode)
    assert config.model_config.return_sampling_mask


def test_nans_in_the_logits_are_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, list[int]] = {}
    update = engine.core.scheduler.update_from_output

    def noted(scheduled: Any, output: Any) -> Any:
        for req_id, count in (output.num_nans_in_logits or {}).items():
            counted.setdefault(req_id, []).append(count)
        return update(scheduled, output)

    monkeypatch.setattr(engine.core.scheduler, "update_from_output", noted)
    head = engine.runner.model.lm_head.weight.data
    rows, spoilt = head[[300, 301]].clone(), torch.full_like(head[:2], float("nan"))
    prompts = (prompt_of(9), prompt_of(100))
    with engine.with_options(compute_nans=True):
        before = engine.tokens(*((prompt, GREEDY) for prompt in prompts))
        assert {count for counts in counted.values() for count in counts} == {0}
        counted.clear()
        head[[300, 301]] = spoilt
        engine.tokens(*((prompt, {**GREEDY, "logit_bias": {300: -9.0}}) for prompt in prompts))
        head[[300, 301]] = rows
    assert len(counted) == 2
    assert {count for counts in counted.values() for count in counts} == {2}
    assert before == engine.tokens(*((prompt, GREEDY) for prompt in prompts))


def test_beams_are_the_best_sequences(engine: Engine, oracle: CoreOracle) -> None:  # noqa: F811
    from vllm.sampling_params import BeamSearchParams

    prompts = [prompt_of(8), prompt_of(50)]
    found = engine.llm.beam_search(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True),
    )
    for prompt, output in zip(prompts, found, strict=True):
        wanted, _ = oracle.call(
            "tests.helpers.teacher_forced.beams", str(engine.checkpoint), prompt, 3, 5
        )
        assert [sequence.tokens[-5:] for sequence in output.sequences] == wanted


def test_a_thinking_budget_forces_the_end_of_thinking(engine: Engine) -> None:
    from vllm_ascend_mrv2.cli.models import tiny

    start = tiny.SPECIALS.index("<|im_start|>") + tiny.BOS
    thinking = [*prompt_of(12), start]
    budgets = (0, 1, 4)
    free = engine.tokens((thinking, RANDOM))[0]
    assert tiny.EOS not in free
    made = engine.tokens(
        *((thinking, {**RANDOM, "thinking_token_budget": budget}) for budget in budgets),
        (thinking, RANDOM),
    )
    for budget, tokens in zip(budgets, made, strict=False):
        assert tokens[: budget + 1] == [*free[:budget], tiny.EOS]
    assert made[-1] == free


# -- grammars --------------------------------------------------------------------------------------


@pytest.fixture(params=BACKENDS)
def backend(engine: Engine, request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine with another structured output backend; core keeps the first it was asked for."""
    config = engine.llm.llm_engine.vllm_config.structured_outputs_config
    manager = engine.core.structured_output_manager
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "backend", request.param)
        patch.setattr(config, "disable_any_whitespace", request.param != "outlines")
        patch.setattr(manager, "backend", None)
        patch.setattr(manager, "_grammar_bitmask", None)
        yield request.param


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,5}$"},
        "size": {"enum": ["small", "large"]},
        "is_new": {"type": "boolean"},
    },
    "required": ["name", "size", "is_new"],
    "additionalProperties": False,
}


def test_output_keeps_to_its_grammar(engine: Engine, backend: str) -> None:
    import json
    import re

    from vllm.sampling_params import StructuredOutputsParams

    def asked(seed: int, **structure: Any) -> dict[str, Any]:
        structured = StructuredOutputsParams(**structure)
        more = {"ignore_eos": False, "max_tokens": 120}
        return {"temperature": 1.0, "seed": seed, "structured_outputs": structured, **more}

    choices = ["red", "green", "blue and green"]
    plain = (prompt_of(15), RANDOM)
    requests = [
        (prompt_of(10, case), asked(case, **structure))
        for case in range(3)
        for structure in ({"choice": choices}, {"regex": r"[a-c]{3}-[0-9]{2}"}, {"json": SCHEMA})
    ]
    grammar = 'root ::= "(" root ")" | "x" | "y"' if backend == "xgrammar" else None
    if backend == "guidance":
        grammar = 'start: "(" start ")" | "x" | "y"'
    if grammar:
        requests.append((prompt_of(10), asked(5, grammar=grammar)))
    outputs = engine.ask(plain, *requests)
    assert list(outputs[0].outputs[0].token_ids) == engine.tokens(plain)[0]
    texts = [output.outputs[0].text for output in outputs[1:]]
    assert all(output.outputs[0].finish_reason == "stop" for output in outputs[1:]), texts
    for choice, matched, document in zip(texts[0:9:3], texts[1:9:3], texts[2:9:3], strict=True):
        assert choice in choices
        assert re.fullmatch(r"[a-c]{3}-[0-9]{2}", matched)
        value = json.loads(document)
        assert re.fullmatch("[a-z]{2,5}", value.pop("name"))
        assert value.pop("size") in ("small", "large")
        assert isinstance(value.pop("is_new"), bool)
        assert not value
    assert len(set(texts[:9])) > 6, "seeds hardly matter"
    if grammar:
        assert re.fullmatch(r"(\()*[xy](\))*", texts[9])
        assert texts[9].count("(") == texts[9].count(")")
