# SPDX-License-Identifier: Apache-2.0
"""kernels/input_batch.py against core's kernels, through core's own wrapper functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_MODEL_LEN, MAX_NUM_REQS, VOCAB_SIZE, Batch, batches
from tests.helpers.kernel_check import KernelCheck

CORE = "vllm.v1.worker.gpu.input_batch"
MAX_NUM_TOKENS = 80


@given(batch=batches(), lookahead=st.integers(1, 3))
def test_prepare_prefill_inputs(check: KernelCheck, batch: Batch, lookahead: int) -> None:
    check.same(
        f"{CORE}.prepare_prefill_inputs",
        batch.ints(MAX_NUM_TOKENS, VOCAB_SIZE, torch.int32),
        batch.ints((lookahead, MAX_NUM_REQS), VOCAB_SIZE, torch.int32),
        batch.idx_mapping,
        batch.query_start_loc,
        batch.all_token_ids,
        batch.prefill_len,
        batch.num_computed_tokens,
    )


@given(batch=batches())
def test_prepare_pos_seq_lens(check: KernelCheck, batch: Batch) -> None:
    check.same(
        f"{CORE}.prepare_pos_seq_lens",
        batch.idx_mapping,
        batch.query_start_loc,
        batch.num_computed_tokens,
        batch.ints(MAX_NUM_TOKENS, MAX_MODEL_LEN, torch.int64),
        batch.ints(MAX_NUM_REQS, MAX_MODEL_LEN, torch.int32),
    )


def combine_arguments(batch: Batch, num_drafts: int, num_new: int) -> tuple[object, ...]:
    return (
        batch.ints(MAX_NUM_TOKENS, VOCAB_SIZE, torch.int32),
        batch.idx_mapping,
        batch.last_sampled_tokens,
        batch.query_start_loc,
        batch.seq_lens,
        batch.prefill_len,
        batch.ints((MAX_NUM_REQS, num_drafts), VOCAB_SIZE, torch.int64),
        batch.cu_num_logits,
        batch.num_logits,
        num_new,
    )


@pytest.mark.parametrize("max_drafts", [0, 1, 4])
@given(data=st.data())
def test_combine_sampled_and_draft_tokens(
    check: KernelCheck, max_drafts: int, data: st.DataObject
) -> None:
    batch = data.draw(batches(max_drafts=max_drafts))
    check.same(f"{CORE}.combine_sampled_and_draft_tokens", *combine_arguments(batch, max_drafts, 1))


@given(batch=batches())
def test_diffusion_is_refused_by_name(check: KernelCheck, batch: Batch) -> None:
    from vllm.v1.worker.gpu.input_batch import combine_sampled_and_draft_tokens

    from vllm_ascend_mrv2.kernels.errors import NotReplacedError

    with pytest.raises(NotReplacedError, match=r"^diffusion"):
        combine_sampled_and_draft_tokens(*check.place(combine_arguments(batch, 0, 0)))


@given(batch=batches(max_drafts=3))
def test_get_num_sampled_and_rejected(check: KernelCheck, batch: Batch) -> None:
    sampled = 1 + batch.ints(batch.num_reqs, 9, torch.int32) % batch.logits_per_row
    check.same(
        f"{CORE}.get_num_sampled_and_rejected",
        sampled.to(torch.int32),
        batch.seq_lens,
        batch.cu_num_logits,
        batch.idx_mapping,
        batch.prefill_len,
    )


@given(
    batch=batches(),
    counts=st.booleans(),
    with_queries=st.booleans(),
    padded_rows=st.integers(0, 3),
    width=st.sampled_from([1, 2, 6]),
)
def test_post_update(
    check: KernelCheck,
    batch: Batch,
    counts: bool,
    with_queries: bool,
    padded_rows: int,
    width: int,
) -> None:
    """Also with rows that own no request: they may not disturb state row 0."""
    rows = batch.num_reqs + padded_rows
    no_request = torch.full((padded_rows,), -1, dtype=torch.int64)
    starts = torch.cat(
        (batch.query_start_loc, batch.query_start_loc[-1:].expand(padded_rows)),
    )
    check.same(
        f"{CORE}.post_update",
        torch.cat((batch.idx_mapping, no_request)),
        batch.num_computed_tokens,
        batch.last_sampled_tokens,
        batch.ints((MAX_NUM_REQS, VOCAB_SIZE), 5, torch.int32) if counts else None,
        batch.ints((rows, width), VOCAB_SIZE if width == 1 else 4, torch.int64),
        batch.ints(rows, width + 1, torch.int32),
        batch.ints(rows, width + 1, torch.int32),
        starts if with_queries else None,
        batch.all_token_ids,
        batch.total_len,
    )


@given(batch=batches())
def test_post_update_num_computed_tokens(check: KernelCheck, batch: Batch) -> None:
    check.same(
        f"{CORE}.post_update_num_computed_tokens",
        batch.idx_mapping,
        batch.num_computed_tokens,
        batch.query_start_loc,
    )


@given(batch=batches())
def test_expand_idx_mapping(check: KernelCheck, batch: Batch) -> None:
    per_row = batch.ints(batch.num_reqs, 4, torch.int32) + 1
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), per_row.cumsum(0, dtype=torch.int32)))
    check.same(f"{CORE}.expand_idx_mapping", batch.idx_mapping, int(starts[-1]), starts, 4)
