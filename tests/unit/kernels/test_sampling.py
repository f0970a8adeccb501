# SPDX-License-Identifier: Apache-2.0
"""Per-request sampling features in kernels/sample/ against core's kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_MODEL_LEN, MAX_NUM_REQS, VOCAB_SIZE, Batch, batches
from tests.helpers.kernel_check import KernelCheck, assert_same

SAMPLE = "vllm.v1.worker.gpu.sample"


@given(batch=batches(max_drafts=4))
def test_penalties(check: KernelCheck, batch: Batch) -> None:
    num_words = -(-VOCAB_SIZE // 32)

    def penalties(*values: float) -> torch.Tensor:
        return torch.from_numpy(batch.rng.choice(np.float32(values), MAX_NUM_REQS))

    logits = batch.floats(batch.num_logits, VOCAB_SIZE)
    logits[:, ::7] = float("-inf")
    prompt_mask = batch.ints((MAX_NUM_REQS, num_words), 2**32, torch.int64) - 2**31
    check.same(
        f"{SAMPLE}.penalties.apply_penalties",
        logits,
        batch.expanded_idx_mapping,
        batch.ints(batch.num_logits, 6, torch.int32) - 1,
        batch.local_positions,
        penalties(1.0, 0.7, 1.3),
        penalties(0.0, -0.5, 0.25),
        penalties(0.0, 1.5),
        prompt_mask.to(torch.int32),
        batch.ints((MAX_NUM_REQS, VOCAB_SIZE), 3, torch.int32),
    )


@given(batch=batches())
def test_bincount(check: KernelCheck, batch: Batch) -> None:
    num_words = -(-VOCAB_SIZE // 32)
    check.same(
        f"{SAMPLE}.penalties.bincount",
        batch.idx_mapping,
        batch.all_token_ids,
        batch.prompt_len,
        batch.prefill_len,
        batch.ints((MAX_NUM_REQS, num_words), 2**31 - 1, torch.int32),
        batch.ints((MAX_NUM_REQS, VOCAB_SIZE), 9, torch.int32),
        int(batch.prefill_len[batch.idx_mapping].max()),
    )


class HostTable:
    """A table as core's UvaBackedTensor shows it: `np` on the host, `gpu` on the device."""

    def __init__(self, check: KernelCheck, host: torch.Tensor) -> None:
        self.np = host.numpy()
        self.gpu = check.place(host)


def distinct_tokens(batch: Batch, width: int) -> torch.Tensor:
    """[MAX_NUM_REQS, width] int32, distinct in each row."""
    rows = [batch.rng.permutation(VOCAB_SIZE)[:width] for _ in range(MAX_NUM_REQS)]
    return torch.from_numpy(np.stack(rows).astype(np.int32))


@given(batch=batches(), restore=st.booleans(), dead_rows=st.booleans(), used=st.integers(1, 7))
def test_logit_bias(
    check: KernelCheck, batch: Batch, restore: bool, dead_rows: bool, used: int
) -> None:
    """used: which of allowed tokens (1), bias (2) and minimum tokens (4) are in the batch."""
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState

    def counts(width: int, feature: int) -> torch.Tensor:
        return batch.ints(MAX_NUM_REQS, width + 1, torch.int32) * bool(used & feature)

    num_allowed, num_bias, num_stop = counts(6, 1), counts(5, 2), counts(4, 4)
    allowed, biased, stops = (distinct_tokens(batch, width) for width in (6, 5, 4))
    bias = batch.floats(MAX_NUM_REQS, 5)
    positions = (batch.seq_lens - 1).to(torch.int64)
    min_lens = batch.prompt_len + batch.ints(MAX_NUM_REQS, 6, torch.int32)
    restored = batch.ints(MAX_NUM_REQS, 2, torch.int32) * restore
    logits = batch.floats(batch.num_reqs, VOCAB_SIZE)
    if dead_rows:  # only some of a row's stop tokens are left
        alive = torch.zeros_like(logits, dtype=torch.bool)
        alive.scatter_(1, stops[batch.idx_mapping][:, :2].to(torch.int64), True)
        logits.masked_fill_(~alive, float("-inf"))
    _, args = check.oracle.call(
        f"{SAMPLE}.logit_bias.apply_logit_bias",
        logits,
        batch.idx_mapping,
        positions,
        num_allowed,
        allowed,
        num_bias,
        biased,
        bias,
        min_lens,
        num_stop,
        restored,
        stops,
        restore,
    )
    tables = {
        "num_allowed_token_ids": num_allowed,
        "allowed_token_ids": allowed,
        "num_logit_bias": num_bias,
        "logit_bias_token_ids": biased,
        "logit_bias": bias,
        "min_lens": min_lens,
        "num_stop_token_ids": num_stop,
        "restore_when_all_masked": restored,
        "stop_token_ids": stops,
    }
    state = SimpleNamespace(
        use_logit_bias=((num_allowed + num_bias + num_stop) > 0).numpy(),
        **{name: HostTable(check, table) for name, table in tables.items()},
    )
    context = SimpleNamespace(
        idx_mapping_np=batch.idx_mapping.numpy(),
        expanded_idx_mapping=check.place(batch.idx_mapping),
        pos=check.place(positions),
    )
    ours = LogitBiasState.apply(state, check.place(logits.clone()), context)
    assert_same(ours, args[0], "logits", 0, 0)


@given(batch=batches(max_drafts=4), vocabulary=st.integers(2, VOCAB_SIZE))
def test_bad_words(check: KernelCheck, batch: Batch, vocabulary: int) -> None:
    """A small vocabulary makes prefixes match."""
    max_words, width = 5, 14
    offsets = np.zeros((MAX_NUM_REQS, max_words + 1), np.int32)
    counts = batch.rng.integers(0, max_words + 1, MAX_NUM_REQS)
    for row, count in enumerate(counts):
        lengths = batch.rng.integers(1, 4, max_words)
        lengths[np.cumsum(lengths) > width] = 0
        offsets[row, 1 : count + 1] = np.cumsum(lengths)[:count]
        # a row's words are those of length > 0; what follows is stale
        counts[row] = min(count, int((lengths > 0).sum()))
        offsets[row, counts[row] + 1 :] = batch.rng.integers(0, width, max_words - counts[row])
    tokens = batch.ints((MAX_NUM_REQS, width), vocabulary, torch.int32)
    check.same(
        f"{SAMPLE}.bad_words.apply_bad_words",
        batch.floats(batch.num_logits, VOCAB_SIZE),
        batch.expanded_idx_mapping,
        tokens,
        torch.from_numpy(offsets),
        torch.from_numpy(counts.astype(np.int32)),
        batch.all_token_ids % vocabulary,
        batch.prompt_len,
        batch.total_len,
        batch.ints(batch.num_logits, vocabulary, torch.int32),
        batch.local_positions,
        max(1, int(counts[batch.idx_mapping.numpy()].max())),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(batch=batches(), columns=st.integers(1, 9))
def test_token_logprobs(check: KernelCheck, dtype: torch.dtype, batch: Batch, columns: int) -> None:
    check.same(
        f"{SAMPLE}.logprob.compute_token_logprobs",
        batch.floats(batch.num_reqs, 1500).to(dtype),
        batch.ints((batch.num_reqs, columns), 1500, torch.int64),
        rtol=2e-6,
        atol=2e-6,
    )


def test_many_rows_are_worked_off_in_chunks(
    check: KernelCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_ascend_mrv2.kernels.sample import logprob

    monkeypatch.setattr(logprob, "_CHUNK_ELEMENTS", 3 * 50)
    generator = torch.Generator().manual_seed(1)
    check.same(
        f"{SAMPLE}.logprob.compute_token_logprobs",
        torch.randn(11, 50, generator=generator),
        torch.randint(0, 50, (11, 4), generator=generator),
        rtol=2e-6,
        atol=2e-6,
    )


@given(batch=batches(), top=st.integers(0, 6), own=st.integers(1, 5), logits_mode=st.booleans())
def test_topk_scores(
    check: KernelCheck, batch: Batch, top: int, own: int, logits_mode: bool
) -> None:
    """Ranks, top-k, and rows that name their own tokens (own: the most of any row)."""
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

    # multiples of 1/8 tie often, as ranks must count; one maximum keeps top-k unambiguous
    logits = (batch.floats(batch.num_reqs, VOCAB_SIZE) * 8).round() / 8
    logits += torch.arange(VOCAB_SIZE) * 1e-3
    sampled = batch.ints(batch.num_reqs, VOCAB_SIZE, torch.int64)
    num_own = batch.ints(MAX_NUM_REQS, own + 1, torch.int32)
    own_tokens = batch.ints((MAX_NUM_REQS, 8), VOCAB_SIZE, torch.int32)

    def run(call, place):
        state = SimpleNamespace(
            num_token_ids=SimpleNamespace(gpu=place(num_own)),
            token_ids=SimpleNamespace(gpu=place(own_tokens)),
        )
        for max_own in (0, own):
            yield call(
                place(logits),
                top,
                place(sampled),
                None,
                state,
                place(batch.idx_mapping),
                max_own,
                logits_mode,
            )

    name = f"{SAMPLE}.logprob.compute_topk_scores"
    ours = run(compute_topk_scores, check.place)
    wanted = run(lambda *args: check.oracle.call(name, *args)[0], lambda tensor: tensor)
    for mine, core in zip(ours, wanted, strict=True):
        for field in ("logprob_token_ids", "logprobs", "selected_token_ranks"):
            assert_same(getattr(mine, field), getattr(core, field), field, 2e-6, 2e-6)


def test_ranks_count_ties(check: KernelCheck) -> None:
    scores = check.same(
        f"{SAMPLE}.logprob.compute_topk_scores",
        torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]]),
        0,
        torch.tensor([1, 3]),
        rtol=1e-6,
    )
    assert scores.selected_token_ranks.tolist() == [2, 4]


@given(batch=batches())
def test_prompt_logprobs_token_ids(check: KernelCheck, batch: Batch) -> None:
    check.same(
        f"{SAMPLE}.prompt_logprob.get_prompt_logprobs_token_ids",
        batch.num_tokens,
        batch.query_start_loc,
        batch.idx_mapping,
        batch.num_computed_tokens,
        batch.all_token_ids,
    )


@given(batch=batches(), padded_rows=st.integers(0, 2))
def test_trace_replay(check: KernelCheck, batch: Batch, padded_rows: int) -> None:
    no_request = torch.full((padded_rows,), -1, dtype=torch.int64)
    check.same(
        f"{SAMPLE}.trace_replay.apply_trace_tokens",
        batch.ints(batch.num_reqs + padded_rows, VOCAB_SIZE, torch.int64),
        torch.cat((batch.idx_mapping, no_request)),
        batch.ints((MAX_NUM_REQS, MAX_MODEL_LEN), VOCAB_SIZE, torch.int32),
        batch.ints(MAX_NUM_REQS, 9, torch.int32),
        batch.total_len,
        batch.prompt_len,
    )


@given(batch=batches(), kept=st.integers(1, 12), sparse=st.booleans())
def test_sampling_mask(check: KernelCheck, batch: Batch, kept: int, sparse: bool) -> None:
    """Ids past a row's count are undefined in core; the bitmask of a row without samples too."""
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors

    logits = batch.floats(batch.num_reqs, VOCAB_SIZE)
    dropped = batch.rng.random(logits.shape) < (0.95 if sparse else 0.3)
    logits[torch.from_numpy(dropped)] = float("-inf")
    arguments = (
        logits,
        torch.arange(batch.num_reqs + 1, dtype=torch.int32),
        batch.ints(batch.num_reqs, 2, torch.int32),
        kept,
    )
    ours = SamplingMaskTensors.from_logits(*check.place(arguments))
    core, _ = check.oracle.call("tests.helpers.core_tables.sampling_mask", *arguments)
    assert_same(ours.counts, core.counts, "counts", 0, 0)
    for row, count in enumerate(core.counts.tolist()):
        shown = min(count, kept)
        assert_same(ours.token_ids[row, :shown], core.token_ids[row, :shown], "token ids", 0, 0)
        if count:
            assert_same(ours.packed_mask[row], core.packed_mask[row], "bitmask", 0, 0)


@given(batch=batches())
def test_num_nans(check: KernelCheck, batch: Batch) -> None:
    logits = batch.floats(batch.num_reqs, 300)
    is_nan = torch.from_numpy(batch.rng.random(logits.shape) < 0.2)
    logits[is_nan] = float("nan")
    logits[:, 0] = float("inf")
    is_nan[:, 0] = False
    from vllm.v1.worker.gpu.metrics.logits import get_num_nans

    # core's kernel calls libdevice, which the interpreter lacks: count here
    counts = get_num_nans(check.place(logits))
    assert_same(counts, is_nan.sum(1, dtype=torch.int32), "NaNs", 0, 0)


@given(batch=batches(), stride=st.integers(1, 3))
def test_grammar_bitmask(check: KernelCheck, batch: Batch, stride: int) -> None:
    """Masks for some requests' positions, in any order; some past their request's logits.

    Core's kernel does not run interpreted (its store mask is no bool there): the reference is
    numpy.
    """
    counts = batch.rng.integers(1, stride + 1, batch.num_reqs)
    starts = np.concatenate(([0], counts.cumsum())).astype(np.int32)
    slots = batch.rng.permutation(batch.num_reqs * stride)
    slots = slots[: batch.rng.integers(1, len(slots) + 1)].astype(np.int32)
    allowed = batch.rng.random((len(slots), 128)) < 0.5
    packed = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    logits = batch.floats(int(starts[-1]), VOCAB_SIZE)
    wanted = logits.clone()
    for slot, mask in zip(slots, allowed, strict=True):
        request, position = divmod(int(slot), stride)
        if position < counts[request]:
            forbidden = torch.from_numpy(~mask[:VOCAB_SIZE])
            wanted[starts[request] + position, forbidden] = float("-inf")
    from vllm.v1.worker.gpu.structured_outputs import _apply_grammar_bitmask_kernel

    ours, indices, cu_num_logits, bitmask = check.place(
        (logits, torch.from_numpy(slots), torch.from_numpy(starts), torch.from_numpy(packed))
    )
    _apply_grammar_bitmask_kernel[(len(slots), 1)](
        ours,
        ours.stride(0),
        indices,
        cu_num_logits,
        bitmask,
        bitmask.stride(0),
        VOCAB_SIZE,
        MASK_STRIDE=stride,
        BLOCK_SIZE=128,
    )
    assert_same(ours, wanted, "logits", 0, 0)
