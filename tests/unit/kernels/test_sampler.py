# SPDX-License-Identifier: Apache-2.0
"""The whole sampler, step after step, in mixed batches: the tokens that core's kernels give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers import sampler_run
from tests.helpers.kernel_check import KernelCheck

pytestmark = pytest.mark.usefixtures("host_tables_on")

RANDOM = {"temperature": 1.0, "seed": 11}
COMBINATIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logit_bias": {5: 30.0, 9: 31.0}},
    {"temperature": 0.0, "repetition_penalty": 1.8},
    {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 1.5},
    {"temperature": 0.0, "allowed_token_ids": [1, 2, 250]},
    {"temperature": 0.0, "bad_words": [[7], [3, 4], [299]]},
    {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": list(range(40))},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0, "logprob_token_ids": [4, 8, 15]},
    {"temperature": 0.0, "repetition_penalty": 0.5, "logit_bias": {0: -100.0}},
    RANDOM,
    {**RANDOM, "seed": 0},
    {**RANDOM, "seed": -2},  # -1 means none
    {**RANDOM, "seed": 2**63 - 1},
    {**RANDOM, "seed": -(2**63)},
    {**RANDOM, "temperature": 0.3},
    {**RANDOM, "temperature": 1.9},
    {**RANDOM, "top_k": 1},
    {**RANDOM, "top_k": 17},
    {**RANDOM, "top_p": 0.05},
    {**RANDOM, "top_p": 0.9},
    {**RANDOM, "min_p": 0.05},
    {**RANDOM, "min_p": 1.0},
    {**RANDOM, "top_k": 40, "top_p": 0.8},
    {**RANDOM, "top_k": 40, "top_p": 0.8, "min_p": 0.02, "temperature": 0.7},
    {**RANDOM, "repetition_penalty": 1.3},
    {**RANDOM, "frequency_penalty": -1.0},
    {**RANDOM, "presence_penalty": 2.0, "top_k": 50},
    {**RANDOM, "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    {**RANDOM, "logit_bias": {100: 5.0, 200: -5.0}},
    {**RANDOM, "allowed_token_ids": list(range(0, 300, 3))},
    {**RANDOM, "allowed_token_ids": [42]},
    {**RANDOM, "bad_words": [[i] for i in range(0, 60)]},
    {**RANDOM, "min_tokens": 3, "stop_token_ids": list(range(100))},
    {**RANDOM, "min_tokens": 1, "stop_token_ids": [1], "allowed_token_ids": [1, 2]},
    {**RANDOM, "logprobs": 5, "top_k": 8},
    {**RANDOM, "logprobs": 0, "temperature": 0.5},
    {**RANDOM, "logprob_token_ids": [0, 299], "min_p": 0.1},
    {**RANDOM, "seed": 5, "temperature": 0.9, "top_p": 0.95, "logit_bias": {3: 2.0}},
    {**RANDOM, "seed": 6, "repetition_penalty": 1.2, "bad_words": [[1, 2]], "min_p": 0.01},
]


def compare(check: KernelCheck, parameters: list[dict[str, Any]], **options: Any) -> None:
    ours = sampler_run.run(parameters, 3, 7, device=str(check.device), oracle=False, **options)
    core, _ = check.oracle.call("tests.helpers.sampler_run.run", parameters, 3, 7, **options)
    for step, (mine, wanted) in enumerate(zip(ours, core, strict=True)):
        assert mine.keys() == wanted.keys()
        different = (mine["sampled"] != wanted["sampled"]).nonzero().flatten().tolist()
        assert not different, f"step {step}: {[parameters[i] for i in different]}"
        for name in mine.keys() & {"token_ids", "ranks"}:
            assert torch.equal(mine[name], wanted[name]), (step, name)
        if "logprobs" in mine:
            torch.testing.assert_close(mine["logprobs"], wanted["logprobs"], rtol=1e-5, atol=1e-5)


def test_forty_combinations_in_one_batch(check: KernelCheck) -> None:
    assert len(COMBINATIONS) == 40
    compare(check, COMBINATIONS)


@pytest.mark.parametrize("start", [0, 10, 30])
def test_small_batches(check: KernelCheck, start: int) -> None:
    compare(check, COMBINATIONS[start : start + 10])


def test_one_request_at_a_time(check: KernelCheck) -> None:
    for parameters in COMBINATIONS[::8]:
        compare(check, [parameters])


def test_float64_noise(check: KernelCheck) -> None:
    compare(check, COMBINATIONS[10:28], use_fp64_gumbel=True)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logprobs", "processed_logits"])
def test_logprobs_modes(check: KernelCheck, mode: str) -> None:
    compare(check, [p for p in COMBINATIONS if "logprobs" in p], logprobs_mode=mode)
