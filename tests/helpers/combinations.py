# SPDX-License-Identifier: Apache-2.0
"""Forty ways to ask for tokens, for a vocabulary of 300 or more: arguments of SamplingParams.

`bad_words` are token ids here: what a tokenizer makes of words is not what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def sampling_params(arguments: Mapping[str, Any], **more: Any) -> Any:
    """SamplingParams of one combination; `more` is for all alike."""
    from vllm.sampling_params import SamplingParams

    plain = {**arguments, **more}
    bad_words = plain.pop("bad_words", None)
    params = SamplingParams(**plain)
    params._bad_words_token_ids = bad_words
    params._all_stop_token_ids = set(params.stop_token_ids or ())
    return params
