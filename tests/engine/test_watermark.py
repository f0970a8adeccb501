# SPDX-License-Identifier: Apache-2.0
"""Watermarks: drawn by core's rule, found by core's detector, and only where they are wanted.

Each token is held against core's watermarker on the CPU, on the log probabilities of the whole
vocabulary that come with the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.in_process import engine, runner_of
from tests.helpers.core_version import core_is_before

pytestmark = [
    pytest.mark.xdist_group("watermark"),
    pytest.mark.skipif(
        core_is_before("0.32") or not core_is_before("0.33"),
        reason="watermarks are refused on other cores than 0.32",
    ),
]
VOCAB, WIDTH = 320, 4
KEY = 2**63 + 2**40 + 77
PROMPTS = [[5, 9, 200], [17] * 30, [3, 250, 8, 8, 100, 7]]
WHOLE = {"temperature": 1.0, "max_tokens": 40, "logprobs": VOCAB}
LONG = {"temperature": 0.7, "max_tokens": 150}
PLAIN = {"max_tokens": 30}


def serving(checkpoint: Path, **more: Any) -> Any:
    return engine(checkpoint, max_logprobs=VOCAB, num_gpu_blocks_override=120, **more)


def ask(llm: Any, *asked: dict[str, Any]) -> list[Any]:
    """Every prompt with each of `asked`, in one batch; seeds differ."""
    from vllm import SamplingParams

    prompts, params = [], []
    for one in asked:
        for prompt in PROMPTS:
            prompts.append({"prompt_token_ids": prompt})
            params.append(
                SamplingParams(seed=len(params), ignore_eos=True, detokenize=False, **one)
            )
    answers = llm.generate(prompts, params, use_tqdm=False)
    return [answer.outputs[0] for answer in answers]


def tokens(answers: list[Any]) -> list[list[int]]:
    return [list(answer.token_ids) for answer in answers]


def unmarked(llm: Any) -> list[list[int]]:
    """Greedy, and random without a watermark, in a batch of their own."""
    kinds = ({"temperature": 0.0}, {"temperature": 1.0, "watermarking": False})
    return tokens(ask(llm, *({**PLAIN, **kind} for kind in kinds)))


def p_values(answers: list[Any], key: int = KEY) -> list[float]:
    from vllm.v1.watermarking import GumbelWatermarkDetector

    detector = GumbelWatermarkDetector(key, WIDTH)
    return [detector.detect(made).p_value for made in tokens(answers)]


def assert_drawn_by_the_rule(answer: Any) -> None:
    """Every token after a new context; core's own class on the CPU."""
    from vllm.v1.watermarking import GumbelWatermarker

    watermarker, history, seen, checked = GumbelWatermarker(KEY, WIDTH), [-1] * WIDTH, set(), 0
    for token, entries in zip(answer.token_ids, answer.logprobs, strict=True):
        context = tuple(history[-WIDTH:])
        if context not in seen:
            logits = torch.tensor([[entries[t].logprob for t in range(VOCAB)]])
            drawn = watermarker.sample(logits, torch.tensor([context])).token_ids
            assert drawn.item() == token, (checked, context)
            checked += 1
        seen.add(context)
        history.append(token)
    assert checked > 30


@pytest.fixture(scope="module")
def without(tiny: Callable[[str, str], Path]) -> tuple[list[list[int]], list[Any]]:
    """What an engine without a watermark says: to `unmarked`, and to a long request."""
    with serving(tiny("qwen3", "float32"), enforce_eager=True) as llm:
        return unmarked(llm), ask(llm, LONG)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_what_is_watermarked_and_what_is_not(
    tiny: Callable[[str, str], Path],
    without: tuple[list[list[int]], list[Any]],
    mode: str,
) -> None:
    wanted, plain = without
    with serving(
        tiny("qwen3", "float32"),
        watermark_config={"key": KEY},
        enforce_eager=mode == "eager",
    ) as llm:
        # beside each other: some rows of a batch are watermarked, some are not
        mixed = ask(llm, WHOLE, {**PLAIN, "temperature": 0.0}, LONG)
        graphs = runner_of(llm).step_log.counts
        before = sum(n for verdict, n in graphs.items() if verdict.sampling)
        assert unmarked(llm) == wanted
        after = sum(n for verdict, n in graphs.items() if verdict.sampling)
    whole, greedy, long = mixed[:3], mixed[3:6], mixed[6:]
    for answer in whole:
        assert_drawn_by_the_rule(answer)
    assert tokens(greedy) == wanted[:3]
    assert max(p_values(long)) < 1e-9
    assert min(p_values(long, KEY + 1)) > 1e-4
    assert min(p_values(plain)) > 1e-4
    # What is not watermarked may be one graph; what is may not.
    assert (before < 5, after - before > 15) == (True, mode == "graph")


def test_two_keys(tiny: Callable[[str, str], Path]) -> None:
    from vllm.v1.watermarking import DualKeyGumbelWatermarkDetector

    config = {"key": KEY, "algorithm": "dual_key_gumbel", "alpha": 0.3}
    with serving(tiny("qwen3", "float32"), watermark_config=config, enforce_eager=True) as llm:
        made = tokens(ask(llm, LONG))
    detector = DualKeyGumbelWatermarkDetector(KEY, WIDTH, alpha=0.3)
    assert max(detector.detect(answer).p_value for answer in made) < 1e-6
