# SPDX-License-Identifier: Apache-2.0
"""Engines that speculate, for tests: targets and drafters made by the project's makers, one mixed
load, and the engine's arguments for each method.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.in_process import core_of, engine
from vllm_ascend_mrv2.cli.models import drafts, tiny

VOCAB = 256
MAX_MODEL_LEN = 320
NGRAM = {"method": "ngram_gpu", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
METHODS = ("ngram_gpu", "draft_model", "eagle", "eagle3", "mtp")
LLAMA = tiny.Shape(family="llama")
MIMO = tiny.Shape(family="mimo", layers=1)


def target(folder: Path, method: str) -> Path:
    """The checkpoint that `method` drafts for, made below `folder`."""
    shape = MIMO if method == "mtp" else LLAMA
    out = folder / f"target-{shape.family}"
    if not out.exists():
        tiny.write(out, shape, seed=0, dtype="float32", force=False)
    return out


def speculative_config(folder: Path, method: str, k: int, **more: Any) -> dict[str, Any]:
    """--speculative-config for `k` drafts, with its drafter below `folder`."""
    config: dict[str, Any] = {"num_speculative_tokens": k, **more}
    if method == "ngram_gpu":
        return {**NGRAM, **config}
    if method == "mtp":  # its module is in the target's checkpoint
        return {"method": method, **config}
    out = folder / f"draft-{method}"
    if not out.exists():
        drafts.write(out, LLAMA, method, seed=0, dtype="float32", force=False)
    return {"method": method, "model": str(out), **config}


def arguments(**more: Any) -> dict[str, Any]:
    """Of `LLM`: batches of 1 to 16, prompts in chunks, and too few blocks for all of them."""
    return {
        "dtype": "float32",
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 128,
        "block_size": 16,
        "num_gpu_blocks_override": 72,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        **more,
    }


# What stands on top of greedy sampling: none of it may see a draft that was not accepted.
EXTRAS: dict[int, dict[str, Any]] = {
    3: {"presence_penalty": 0.8, "frequency_penalty": 0.3},
    5: {"repetition_penalty": 1.4},
    7: {"logprobs": 3},
    8: {"bad_words_token_ids": True},
    11: {"allowed_token_ids": list(range(40, 60))},
    13: {"min_tokens": 20, "stop_token_ids": list(range(0, 256, 3))},
}


def load(count: int = 32) -> tuple[list[dict[str, list[int]]], list[Any]]:
    """Prompts and greedy parameters of a mixed load; the same each time.

    Some prompts repeat themselves (n-grams), some share a prefix, some lengths are beside borders.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    rng = random.Random(11)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    prompts, params = [], []
    for number in range(count):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 3, 16, 17, 70, 130]))]
        if number % 4 == 2:
            prompt = (prompt * 9)[:150]
        prompts.append({"prompt_token_ids": shared + prompt if number % 3 == 0 else prompt})
        extra = dict(EXTRAS.get(number % 16, {}))
        words = extra.pop("bad_words_token_ids", None)
        if number % 16 == 14:
            extra["structured_outputs"] = StructuredOutputsParams(regex="([a-f]+ ){60}")
        max_tokens = rng.choice([2, 9, 30, 60, 100])
        if "min_tokens" in extra:
            extra["min_tokens"] = min(extra["min_tokens"], max_tokens)
        if number == 20:  # drafts beyond the longest that the model takes
            prompts[-1] = {"prompt_token_ids": [rng.randrange(VOCAB) for _ in range(290)]}
            max_tokens = MAX_MODEL_LEN - 290
        made = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            **extra,
        )
        if words:
            made._bad_words_token_ids = [[t] for t in range(40)] + [[t, 77] for t in range(60)]
        params.append(made)
    return prompts, params


def greedy(llm: Any, count: int = 32) -> list[tuple[list[int], list[dict[int, float]]]]:
    """Tokens and log probabilities (where asked for) of each request of the load."""
    prompts, params = load(count)
    llm.reset_prefix_cache()
    made = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        answer = output.outputs[0]
        scores = [
            {token: entry.logprob for token, entry in place.items()}
            for place in answer.logprobs or ()
        ]
        made.append((list(answer.token_ids), scores))
    return made


def block_pool_of(llm: Any) -> Any:
    """The KV blocks of the scheduler of an engine in this process."""
    return core_of(llm).scheduler.kv_cache_manager.block_pool


@contextmanager
def speculating(
    folder: Path,
    method: str,
    k: int,
    *,
    eager: bool = False,
    async_scheduling: bool = True,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[Any]:
    """An engine that verifies `k` drafts of `method`; its checkpoints are made below `folder`.

    config: more of --speculative-config; more: other arguments than `arguments()` has.
    """
    with engine(
        target(folder, method),
        speculative_config=speculative_config(folder, method, k, **(config or {})),
        async_scheduling=async_scheduling,
        enforce_eager=eager,
        **arguments(**more),
    ) as llm:
        yield llm


def plain_answers(folder: Path, count: int = 32) -> Callable[[str], Any]:
    """Method -> the load's answers without speculation, made once for each target."""
    known: dict[Path, Any] = {}

    def answers(method: str) -> Any:
        checkpoint = target(folder, method)
        if checkpoint not in known:
            with engine(
                checkpoint, enforce_eager=True, async_scheduling=False, **arguments()
            ) as llm:
                known[checkpoint] = greedy(llm, count)
            tokens = [token for answer, _ in known[checkpoint] for token in answer]
            assert len(set(tokens)) > 60, "the model hardly varies"
        return known[checkpoint]

    return answers


def assert_equal(made: Any, wanted: Any, where: str = "") -> None:
    """The same tokens, and log probabilities but for rounding."""
    for number, ((tokens, scores), (plain, plain_scores)) in enumerate(
        zip(made, wanted, strict=True)
    ):
        assert tokens == plain, f"request {number} {where}"
        for place, plain_place in zip(scores, plain_scores, strict=True):
            assert place == pytest.approx(plain_place, abs=1e-4), f"request {number} {where}"


def metric(llm: Any, name: str) -> float:
    """Sum of a counter of vLLM's metrics over its labels."""
    return sum(
        getattr(entry, "value", 0) for entry in llm.get_metrics() if entry.name == f"vllm:{name}"
    )
