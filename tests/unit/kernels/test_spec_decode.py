# SPDX-License-Identifier: Apache-2.0
"""kernels/spec_decode/ against core's kernels: verification of every kind, and drafts' inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_MODEL_LEN, MAX_NUM_REQS, VOCAB_SIZE, Batch, batches
from tests.helpers.kernel_check import KernelCheck, assert_same

SPEC = "vllm.v1.worker.gpu.spec_decode"
K = 4


def namespace(**tensors: Any) -> SimpleNamespace:
    return SimpleNamespace(**tensors)


def positions_of(batch: Batch, length: int) -> torch.Tensor:
    """[length] int64: positions of the batch's tokens, any past them."""
    positions = batch.ints(length, MAX_MODEL_LEN, torch.int64)
    starts = batch.query_start_loc[: batch.num_reqs + 1]
    for row in range(batch.num_reqs):
        first = int(batch.num_computed_tokens[batch.idx_mapping[row]])
        begin, end = int(starts[row]), int(starts[row + 1])
        positions[begin:end] = torch.arange(first, first + end - begin)
    return positions


# -- verification ----------------------------------------------------------------------------------


def verification(batch: Batch, vocab_size: int, draft: str, case: str) -> dict[str, Any]:
    """Arguments of `rejection_sample`, drafts like the target so that some are accepted."""
    rng, num_logits = batch.rng, batch.num_logits
    target = batch.floats(num_logits, vocab_size)
    target[:, 1:][torch.from_numpy(rng.random((num_logits, vocab_size - 1)) < 0.2)] = float("-inf")
    temperatures = {"greedy": [0.0], "random": [0.5, 1.0, 1.7], "mixed": [0.0, 0.7, 1.0]}[case]
    temperature = torch.from_numpy(rng.choice(np.float32(temperatures), MAX_NUM_REQS))
    draft_logits = None
    if draft != "one-hot":
        draft_logits = batch.floats(MAX_NUM_REQS, K, vocab_size + (8 if draft == "wider" else 0))
        row = batch.expanded_idx_mapping
        near = batch.local_positions.clamp(max=K - 1).to(torch.int64)
        # A drafter filters nothing: what it never draws is no draft.
        like_target = target.masked_fill(target.isinf(), -1.0) * 0.9
        draft_logits[row, near, :vocab_size] = (
            like_target + batch.floats(num_logits, vocab_size) * 0.2
        )
        draft_logits[row, near] *= temperature[row].clamp_min(0.5).unsqueeze(1)
    best = target.argmax(-1).roll(1).to(torch.int32)
    other = batch.ints(num_logits, vocab_size, torch.int32)
    kind = torch.from_numpy(rng.random(num_logits))
    drafted = torch.where(kind < 0.7, best, other).masked_fill(kind > 0.95, -1)
    return {
        "target_logits": target,
        "draft_logits": draft_logits,
        "draft_sampled": drafted,
        "cu_num_logits": batch.cu_num_logits,
        "pos": torch.from_numpy(rng.integers(0, 2**20, num_logits)),
        "idx_mapping": batch.idx_mapping,
        "expanded_idx_mapping": batch.expanded_idx_mapping,
        "expanded_local_pos": batch.local_positions,
        "temperature": temperature,
        "seed": torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, MAX_NUM_REQS)),
        "num_speculative_steps": K,
    }


@pytest.mark.parametrize("method", ["standard", "synthetic", "block"])
@settings(max_examples=6)  # each is some hundred launches of an interpreter
@given(
    batch=batches(max_drafts=K),
    vocab_size=st.sampled_from([5, 97, 1100]),
    draft=st.sampled_from(["one-hot", "distribution", "wider"]),
    case=st.sampled_from(["greedy", "random", "mixed"]),
    use_fp64=st.booleans(),
)
def test_rejection_sampling(
    check: KernelCheck,
    method: str,
    batch: Batch,
    vocab_size: int,
    draft: str,
    case: str,
    use_fp64: bool,
) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    arguments = verification(batch, vocab_size, draft, case)
    rates = torch.linspace(0.9, 0.3, K) if method == "synthetic" else None
    options = (rates, use_fp64, method == "block")
    (wanted, wanted_count), _ = check.oracle.call(
        f"{SPEC}.rejection_sampler_utils.rejection_sample", *arguments.values(), *options
    )
    hints = [False, True] if case == "greedy" else [False]
    for all_greedy in hints:
        ours, count = rejection_sample(
            *check.place(tuple(arguments.values())),
            *check.place(options),
            all_greedy=all_greedy,
        )
        assert_same(count, wanted_count, "number of tokens", 0, 0)
        counts = torch.arange(K + 1) < wanted_count.unsqueeze(1)
        assert_same(ours.cpu() * counts, wanted * counts, "tokens", 0, 0)


DRAWS = 20_000
SMALL = 4
# chi-square of 15 degrees of freedom that one true null hypothesis in 10,000 exceeds
CHI_SQUARE_15 = 44.26


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("draft", ["one-hot", "distribution"])
@pytest.mark.parametrize("block", [False, True], ids=["standard", "block"])
def test_output_follows_the_target(
    check: KernelCheck, block: bool, draft: str, temperature: float
) -> None:
    """Pairs of tokens of a small vocabulary, enumerated: each next token depends on the one before.

    Drafts are drawn as core draws them, verified, and what verification leaves open is drawn from
    the target; the frequencies of all 16 pairs must then be the target's.
    """
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    rng = np.random.default_rng(5)
    # row: the token before; the last row: the prompt's
    target = torch.from_numpy(rng.standard_normal((SMALL + 1, SMALL)).astype(np.float32) * 1.5)
    drafter = target + torch.from_numpy(rng.standard_normal(target.shape).astype(np.float32))
    rows = torch.arange(DRAWS)
    temperatures = torch.full((DRAWS,), temperature)
    seeds = torch.from_numpy(rng.integers(0, 2**62, DRAWS))
    cache = torch.zeros(DRAWS, 2, SMALL)
    drafts, before = [], torch.full((DRAWS,), SMALL)
    for step in range(2):
        position = torch.full((DRAWS,), 30 + step)
        arguments = (drafter[before], rows, temperatures, seeds, position, True, True)
        token = gumbel_sample(*check.place((*arguments, cache, torch.tensor(step)))).cpu()
        cache[:, step] = drafter[before]
        drafts.append(token)
        before = token
    # Each request's logits: after the prompt, after the first draft, after the second.
    seen = torch.stack((torch.full((DRAWS,), SMALL), *drafts), 1)
    logits = target[seen].view(-1, SMALL) / temperature
    sampled, counts = rejection_sample(
        *check.place(
            (
                logits,
                cache if draft == "distribution" else None,
                seen.to(torch.int32).flatten(),
                torch.arange(0, 3 * DRAWS + 1, 3, dtype=torch.int32),
                (torch.arange(3) + 30).repeat(DRAWS),
                rows,
                rows.repeat_interleave(3),
                torch.arange(3, dtype=torch.int32).repeat(DRAWS),
                temperatures,
                seeds,
                2,
                None,
                False,
                block,
            )
        )
    )
    sampled, counts = sampled.cpu(), counts.cpu()
    probabilities = (target / temperature).softmax(-1)
    generator = torch.Generator().manual_seed(3)
    drawn = torch.multinomial(probabilities[sampled[:, 0]], 1, generator=generator).squeeze(1)
    second = torch.where(counts >= 2, sampled[:, 1], drawn)
    found = torch.bincount(sampled[:, 0] * SMALL + second, minlength=SMALL**2).double()
    wanted = (probabilities[SMALL].unsqueeze(1) * probabilities[:SMALL]).flatten().double() * DRAWS
    assert 0.05 < (counts == 3).double().mean() < 0.95, "drafts are hardly verified"
    assert ((found - wanted) ** 2 / wanted).sum() < CHI_SQUARE_15


@given(seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), at=st.data())
def test_uniform_draws(check: KernelCheck, seeds: list[int], at: st.DataObject) -> None:
    from vllm_ascend_mrv2.kernels.spec_decode import philox

    positions = at.draw(st.lists(st.integers(0, 2**40), min_size=len(seeds), max_size=len(seeds)))
    arguments = torch.tensor(seeds), torch.tensor(positions)
    ours = philox.uniform(*check.place(arguments))
    wanted, _ = check.oracle.call("tests.helpers.core_tables.uniform", *arguments)
    assert_same(ours, wanted, "draws", 0, 0)


@given(batch=batches(max_drafts=K))
def test_gather_draft_sampled(check: KernelCheck, batch: Batch) -> None:
    last = batch.query_start_loc[1 : batch.num_reqs + 1].repeat_interleave(batch.logits_per_row)
    per_row = batch.logits_per_row.repeat_interleave(batch.logits_per_row)
    check.same(
        f"{SPEC}.rejection_sampler.gather_draft_sampled",
        batch.ints(80, VOCAB_SIZE, torch.int32),
        positions_of(batch, 80),
        (last - per_row + batch.local_positions).to(torch.int64),
        batch.expanded_idx_mapping,
        batch.local_positions,
        batch.prefill_len,
    )


@given(batch=batches(max_drafts=K))
def test_flatten_sampled(check: KernelCheck, batch: Batch) -> None:
    check.same(
        "tests.helpers.core_tables.flatten_sampled",
        batch.ints(batch.num_logits, VOCAB_SIZE, torch.int64),
        batch.ints((batch.num_reqs, K + 1), VOCAB_SIZE, torch.int64),
        (1 + batch.ints(batch.num_reqs, 99, torch.int32) % batch.logits_per_row).to(torch.int32),
        batch.cu_num_logits,
    )


@pytest.mark.parametrize("columns", ["one", "each"])
@given(batch=batches(), none=st.booleans(), wider=st.booleans())
def test_draft_logits_are_kept(
    check: KernelCheck, columns: str, batch: Batch, none: bool, wider: bool
) -> None:
    """Core's kernel does not run interpreted where it keeps logits: told here what it should do."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    n = batch.num_reqs
    mapping = batch.idx_mapping.clone()
    mapping[torch.from_numpy(batch.rng.random(n) < (1.0 if none else 0.3))] = -1
    column = torch.tensor(2) if columns == "one" else batch.ints(n, K, torch.int64)
    logits = batch.floats(n, VOCAB_SIZE)
    cache = batch.floats(MAX_NUM_REQS, K, VOCAB_SIZE + 3 * wider)
    arguments = (
        logits,
        mapping,
        torch.from_numpy(batch.rng.choice(np.float32([0, 0.6]), MAX_NUM_REQS)),
        torch.from_numpy(batch.rng.integers(0, 2**62, MAX_NUM_REQS)),
        torch.from_numpy(batch.rng.integers(0, 2**20, n)),
        True,
        True,
    )
    ours_cache = check.place(cache.clone())
    ours = gumbel_sample(*check.place(arguments), ours_cache, check.place(column))
    wanted, _ = check.oracle.call("vllm.v1.worker.gpu.sample.gumbel.gumbel_sample", *arguments)
    for row, request in enumerate(mapping.tolist()):
        if request >= 0:
            cache[request, column.expand(n)[row], :VOCAB_SIZE] = logits[row]
    assert_same(ours, wanted, "tokens", 0, 0)
    assert_same(ours_cache, cache, "kept logits", 0, 0)


# -- drafts ----------------------------------------------------------------------------------------


def ngram_draft(tokens: list[int], min_n: int, max_n: int, k: int, otherwise: int) -> list[int]:
    """What followed the rightmost of the longest earlier places of a sequence's last tokens."""
    length = len(tokens)
    for n in range(min(max_n, length), min_n - 1, -1):
        for place in range(length - n - 1, -1, -1):
            if tokens[place : place + n] == tokens[length - n :]:
                found = tokens[place + n : place + n + k]
                return found + [otherwise] * (k - len(found))
    return [otherwise] * k


@given(
    rows=st.integers(1, 5),
    case=st.integers(0, 2**32 - 1),
    max_len=st.sampled_from([30, 64, 300]),
    min_n=st.integers(1, 3),
    more=st.integers(0, 3),
    k=st.sampled_from([1, 3, 5]),
)
def test_ngram(
    check: KernelCheck, rows: int, case: int, max_len: int, min_n: int, more: int, k: int
) -> None:
    """Against the rule in plain Python: core's kernels do not run interpreted."""
    from tests.helpers.core_tables import ngram_drafts

    rng = np.random.default_rng(case)
    lengths = rng.integers(1, max_len, rows)
    tokens = rng.integers(0, 3, (rows, max_len)).astype(np.int32)
    order = rng.permutation(rows)
    sampled = rng.integers(0, 3, rows)
    last = rng.integers(0, 3, (rows, 1))
    ours = ngram_drafts(
        *check.place(
            (
                torch.from_numpy(tokens),
                torch.from_numpy(order),
                torch.from_numpy(lengths.astype(np.int32)),
                torch.from_numpy(sampled.astype(np.int32)),
                torch.from_numpy(last),
            )
        ),
        min_n,
        min_n + more,
        k,
    )
    for row, request in enumerate(order):
        sequence = tokens[request, : lengths[request]].tolist()
        otherwise = int(last[request, 0])
        wanted = ngram_draft(sequence, min_n, min_n + more, k, otherwise)
        if sampled[row] == 0:
            wanted = [otherwise] * k
        assert ours[row].tolist() == wanted, (row, sequence)


def rejected_of(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """num_sampled and num_rejected [R] int32, as verification of the batch may give."""
    chunk = batch.seq_lens < batch.prefill_len[batch.idx_mapping]
    accepted = batch.ints(batch.num_reqs, 99, torch.int64) % batch.logits_per_row
    sampled = (accepted + 1).masked_fill(chunk, 0)
    rejected = (batch.logits_per_row - accepted - 1).masked_fill(chunk, 0)
    return sampled.to(torch.int32), rejected.to(torch.int32)


def target_batch(batch: Batch, length: int) -> dict[str, Any]:
    return {
        "num_reqs": batch.num_reqs,
        "num_tokens": batch.num_tokens,
        "input_ids": batch.ints(length, VOCAB_SIZE, torch.int32),
        "positions": positions_of(batch, length),
        "idx_mapping": batch.idx_mapping,
        "query_start_loc": batch.query_start_loc,
        "query_start_loc_np": batch.query_start_loc.numpy(),
        "seq_lens": batch.seq_lens,
    }


def draft_buffers(batch: Batch, length: int) -> dict[str, Any]:
    return {
        "input_ids": batch.ints(length, VOCAB_SIZE, torch.int32),
        "positions": batch.ints(length, MAX_MODEL_LEN, torch.int64),
        "query_start_loc": batch.ints(MAX_NUM_REQS + 1, 99, torch.int32),
        "seq_lens": batch.ints(MAX_NUM_REQS, 99, torch.int32),
    }


@given(batch=batches(max_drafts=K), padding=st.integers(0, 5))
def test_inputs_of_the_first_draft(check: KernelCheck, batch: Batch, padding: int) -> None:
    sampled, rejected = rejected_of(batch)
    check.same(
        "tests.helpers.core_tables.prepare_draft_prefill",
        batch.ints(MAX_NUM_REQS, 50, torch.int64),
        torch.tensor(3),
        draft_buffers(batch, 90),
        target_batch(batch, batch.num_tokens + padding),
        sampled,
        rejected,
        batch.last_sampled_tokens,
        batch.ints((2, MAX_NUM_REQS), VOCAB_SIZE, torch.int32),
        MAX_NUM_REQS,
    )


@pytest.mark.parametrize("advance", [True, False])
@given(batch=batches(max_drafts=K))
def test_inputs_of_the_second_draft(check: KernelCheck, advance: bool, batch: Batch) -> None:
    _, rejected = rejected_of(batch)
    check.same(
        "tests.helpers.core_tables.prepare_draft_decode",
        batch.ints((MAX_NUM_REQS, K), VOCAB_SIZE, torch.int64)[: batch.num_reqs],
        batch.seq_lens + 12,
        rejected,
        draft_buffers(batch, 90),
        batch.ints(MAX_NUM_REQS, 50, torch.int64),
        MAX_MODEL_LEN,
        MAX_NUM_REQS,
        advance,
    )


@pytest.mark.parametrize("advance", [True, False])
@given(batch=batches(), step=st.integers(1, K - 1))
def test_inputs_of_the_next_draft(
    check: KernelCheck, advance: bool, batch: Batch, step: int
) -> None:
    check.same(
        "tests.helpers.core_tables.update_draft_inputs",
        batch.ints(batch.num_reqs, VOCAB_SIZE, torch.int64),
        torch.tensor(step),
        batch.floats(batch.num_reqs + 2, 24),
        batch.ints((MAX_NUM_REQS, K), VOCAB_SIZE, torch.int64),
        batch.floats(20, 24),
        draft_buffers(batch, 90),
        batch.ints(MAX_NUM_REQS, 50, torch.int64),
        batch.num_reqs,
        MAX_MODEL_LEN,
        K,
        advance,
    )


@given(batch=batches(max_drafts=K), padding=st.integers(0, 5))
def test_inputs_of_a_draft_model(check: KernelCheck, batch: Batch, padding: int) -> None:
    _, rejected = rejected_of(batch)
    check.same(
        "tests.helpers.core_tables.prepare_draft_model_prefill",
        draft_buffers(batch, 90),
        target_batch(batch, batch.num_tokens + padding),
        batch.last_sampled_tokens,
        rejected,
        batch.ints(110, VOCAB_SIZE, torch.int32),
        batch.ints(110, MAX_MODEL_LEN, torch.int64),
        batch.ints(MAX_NUM_REQS, 50, torch.int64),
        MAX_NUM_REQS,
        MAX_MODEL_LEN,
    )
