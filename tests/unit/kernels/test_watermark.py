# SPDX-License-Identifier: Apache-2.0
"""kernels/sample/watermark.py against core's kernels: the keyed noise, and contexts that repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_NUM_REQS, VOCAB_SIZE, Batch, batches
from tests.helpers.kernel_check import KernelCheck, assert_same

MARKS = "vllm.v1.worker.gpu.sample.watermark"
KEYS = st.one_of(st.sampled_from([0, 1, 2**32, 2**64 - 1]), st.integers(0, 2**64 - 1))


def contexts_of(batch: Batch, rows: int, width: int) -> torch.Tensor:
    """[rows, width] int64, some without a first token."""
    contexts = batch.ints((rows, width), 2**18, torch.int64)
    contexts[torch.from_numpy(batch.rng.random(rows) < 0.3), : (width + 1) // 2] = -1
    return contexts


@settings(max_examples=8)
@given(
    batch=batches(max_drafts=3),
    key=KEYS,
    width=st.integers(1, 9),
    vocab_size=st.sampled_from([2, 97, 1030]),
)
def test_watermarked_tokens(
    check: KernelCheck, batch: Batch, key: int, width: int, vocab_size: int
) -> None:
    logits = batch.floats(batch.num_logits, vocab_size)
    logits[:, ::5] = float("-inf")
    logits[0, 1] = float("nan")
    check.same(
        f"{MARKS}.philox_gumbel_sample", logits, contexts_of(batch, batch.num_logits, width), key
    )


@settings(max_examples=8)
@given(batch=batches(max_drafts=3), key=KEYS, drafts=st.booleans(), use_fp64=st.booleans())
def test_some_rows_are_drawn_without_a_watermark(
    check: KernelCheck, batch: Batch, key: int, drafts: bool, use_fp64: bool
) -> None:
    rows = batch.num_logits
    logits = batch.floats(rows, VOCAB_SIZE)
    state: dict[str, Any] = {
        "skip_mask": torch.from_numpy(batch.rng.random(rows) < 0.5),
        "expanded_idx_mapping": batch.expanded_idx_mapping,
        "temperatures": torch.from_numpy(batch.rng.choice(np.float32([0.0, 1.0]), MAX_NUM_REQS)),
        "seeds": torch.from_numpy(batch.rng.integers(-(2**63), 2**63 - 1, MAX_NUM_REQS)),
        "positions": batch.ints(rows, 2**20, torch.int64),
        "use_fp64": use_fp64,
        "is_drafting": drafts,
    }
    arguments = (logits, contexts_of(batch, rows, 4), key)
    wanted, _ = check.oracle.call("tests.helpers.core_tables.watermarked", arguments, state)
    cache = torch.full((MAX_NUM_REQS, 4, VOCAB_SIZE), -7.0)
    wanted_cache = cache.clone()
    if drafts:  # interpreted, core's store into it fails: its mask is no bool there
        state |= {
            "logits_cache": cache,
            "logits_cache_col": batch.local_positions,
            "logits_cache_source": logits * 2,
        }
        at = batch.expanded_idx_mapping, batch.local_positions.to(torch.int64)
        wanted_cache[at] = logits * 2
    from vllm.v1.worker.gpu.sample.watermark import philox_gumbel_sample

    placed = check.place(state)
    ours = philox_gumbel_sample(*check.place(arguments), **placed)
    assert_same(ours, wanted, "tokens", 0, 0)
    if drafts:
        assert_same(placed["logits_cache"], wanted_cache, "cache", 0, 0)


def histories(batch: Batch, width: int) -> dict[str, torch.Tensor]:
    """Tokens of few kinds, so that contexts come again; rows of no request among the others."""
    tokens = batch.all_token_ids % 3
    request = batch.expanded_idx_mapping.clone()
    rows = torch.arange(len(request))
    total = batch.total_len[request].to(torch.int64)
    # what stands before each row's token, of the generated ones only
    position = total.unsqueeze(1) + torch.arange(-width, 0)
    known = position >= batch.prompt_len[request].unsqueeze(1)
    contexts = tokens[request.unsqueeze(1), position.clamp_min(0)].to(torch.int64)
    contexts = contexts.masked_fill(~known, -1)
    request[rows % 5 == 4] = -1
    return {
        "all_token_ids": tokens,
        "req_indices": request,
        "prompt_lens": batch.prompt_len,
        "total_lens": batch.total_len,
        "contexts": contexts,
    }


MOST = st.sampled_from([0, 1, 3, 100])  # 0: no bound


@given(
    batch=batches(max_drafts=3),
    width=st.integers(1, 5),
    most=MOST,
    include_prompt=st.booleans(),
    skip_partial=st.booleans(),
    newer=st.booleans(),
)
def test_contexts_that_came_before(
    check: KernelCheck,
    batch: Batch,
    width: int,
    most: int,
    include_prompt: bool,
    skip_partial: bool,
    newer: bool,
) -> None:
    made = histories(batch, width)
    check.same(
        "tests.helpers.core_tables.repeated_contexts",
        torch.zeros(len(made["contexts"]), dtype=torch.bool),
        *made.values(),
        most,
        include_prompt,
        skip_partial,
        batch.local_positions if newer else None,
    )


@given(batch=batches(max_drafts=4), width=st.integers(1, 3), most=MOST, prompt=st.booleans())
def test_contexts_that_earlier_drafts_had(
    check: KernelCheck, batch: Batch, width: int, most: int, prompt: bool
) -> None:
    made = histories(batch, width)
    made["contexts"] = batch.ints(tuple(made["contexts"].shape), 2, torch.int64)
    check.same(
        "tests.helpers.core_tables.repeated_contexts",
        torch.zeros(len(made["contexts"]), dtype=torch.bool),
        *made.values(),
        most,
        prompt,
        False,
        batch.local_positions,
        batch.local_positions,
        4,
    )


@given(batch=batches(), width=st.integers(1, 3), most=MOST, prompt=st.booleans())
def test_which_drafts_are_watermarked(
    check: KernelCheck, batch: Batch, width: int, most: int, prompt: bool
) -> None:
    """A draft's context is kept for the next one's comparison, whatever the answer is."""
    made = histories(batch, width)
    rows = len(made["contexts"])
    steps = batch.ints(rows, 4, torch.int64)
    check.same(
        "tests.helpers.core_tables.repeated_contexts",
        torch.zeros(rows, dtype=torch.bool),
        *made.values(),
        most,
        prompt,
        False,
        steps,
        None,
        4,
        batch.ints((MAX_NUM_REQS, 4, width), 3, torch.int64),
        steps,
        torch.from_numpy(batch.rng.random(rows) < 0.8),
    )
