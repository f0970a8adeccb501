# SPDX-License-Identifier: Apache-2.0
"""Which decode steps are one graph: the rule's table, and what a request may ask for in it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from vllm import SamplingParams

from vllm_ascend_mrv2.graph.decode_step import Sampling
from vllm_ascend_mrv2.graph.step_graphs import StepFacts, decide_step
from vllm_ascend_mrv2.kernels.sample.sampler import samples_plainly

STEADY = StepFacts(
    num_requests=3,
    largest_size=8,
    has_new_requests=False,
    has_drafts=False,
    has_grammar=False,
    has_adapters=False,
    all_one_token=True,
    all_past_prefill=True,
    needs_logits_processing=False,
    needs_logprobs=False,
    counts_nans=False,
    any_random=False,
)
# Fact -> values that forbid the graph.
AGAINST: dict[str, tuple[Any, ...]] = {
    "num_requests": (0, 9),
    "largest_size": (0,),
    "has_new_requests": (True,),
    "has_drafts": (True,),
    "has_grammar": (True,),
    "has_adapters": (True,),
    "all_one_token": (False,),
    "all_past_prefill": (False,),
    "needs_logits_processing": (True,),
    "needs_logprobs": (True,),
    "counts_nans": (True,),
}


def test_the_table_covers_every_fact() -> None:
    assert set(AGAINST) | {"any_random"} == set(StepFacts.__dataclass_fields__)


def test_only_a_steady_step_is_one_graph() -> None:
    choices = [(getattr(STEADY, name), *values) for name, values in AGAINST.items()]
    rows = [
        StepFacts(**dict(zip(AGAINST, row, strict=True)), any_random=is_random)
        for row in itertools.product(*choices)
        for is_random in (False, True)
    ]
    graphs = [row for row in rows if decide_step(row).sampling is not None]
    assert graphs == [STEADY, replace(STEADY, any_random=True)]
    assert decide_step(STEADY).sampling is Sampling.GREEDY
    assert decide_step(replace(STEADY, any_random=True)).sampling is Sampling.SEEDED


@pytest.mark.parametrize("size", [1, 8])
def test_up_to_the_largest_captured_size(size: int) -> None:
    assert decide_step(replace(STEADY, num_requests=size)).sampling is Sampling.GREEDY


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 3, "n": 2},
        {"stop": ["x"], "max_tokens": 5, "ignore_eos": True},
        {"include_stop_str_in_output": True, "skip_special_tokens": False},
    ],
)
def test_temperature_and_seed_are_plain(asked: dict[str, Any]) -> None:
    assert samples_plainly(SamplingParams(**asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 5},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": [1, 2]},
        {"min_tokens": 2},
        {"bad_words": ["no"]},
        {"logprobs": 0},
        {"prompt_logprobs": 1},
        {"thinking_token_budget": 4},
        {"extra_args": {"anything": 1}},
    ],
)
def test_all_else_is_not(asked: dict[str, Any]) -> None:
    assert not samples_plainly(SamplingParams(**asked))
