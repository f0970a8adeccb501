# SPDX-License-Identifier: Apache-2.0
"""kernels/sample/batch_shard.py against core's kernels: which rank samples what, and its results.

Every rank of a batch in turn, also one that owns no request. What core leaves as it was is full of
a value that is none of the results'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_NUM_REQS, VOCAB_SIZE, Batch, batches
from tests.helpers.kernel_check import KernelCheck

LAUNCHES = "tests.helpers.core_tables"
UNTOUCHED = -77


@dataclass(frozen=True)
class Shard:
    """What the host knows of one rank's part. own: [num_reqs] bool."""

    rank: int
    own: np.ndarray
    logits_before: int
    num_logits: int
    most_reqs: int  # of any rank

    @property
    def num_reqs(self) -> int:
        return int(self.own.sum())


def shards(batch: Batch, num_ranks: int) -> list[Shard]:
    owner = batch.idx_mapping.numpy() % num_ranks
    per_row = batch.logits_per_row.numpy()
    counts = np.bincount(owner, weights=per_row, minlength=num_ranks).astype(int)
    most = int(np.bincount(owner, minlength=num_ranks).max())
    return [
        Shard(rank, owner == rank, int(counts[:rank].sum()), int(counts[rank]), most)
        for rank in range(num_ranks)
    ]


def own_starts(batch: Batch, shard: Shard) -> torch.Tensor:
    """[r + 1] int32: where the logits of this rank's requests begin among its own."""
    lengths = batch.logits_per_row[torch.from_numpy(shard.own)]
    return torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).to(torch.int32)


def untouched(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.full(shape, UNTOUCHED, dtype=dtype)


@given(
    batch=batches(max_drafts=4),
    num_ranks=st.integers(2, 4),
    narrow=st.booleans(),  # state rows as int32
)
def test_shard_plan(check: KernelCheck, batch: Batch, num_ranks: int, narrow: bool) -> None:
    rows = torch.int32 if narrow else torch.int64
    for shard in shards(batch, num_ranks):
        out = [
            untouched(batch.num_logits),
            untouched(batch.num_reqs),
            untouched(shard.num_reqs, dtype=rows),
            untouched(shard.num_reqs + 1, dtype=torch.int32),
            untouched(shard.num_logits),
            untouched(shard.num_logits, dtype=rows),
            untouched(shard.num_logits, dtype=torch.int32),
            untouched(shard.num_reqs, dtype=torch.int32),
        ]
        check.same(
            f"{LAUNCHES}.build_shard_plan",
            batch.idx_mapping.to(rows),
            batch.cu_num_logits,
            batch.query_start_loc,
            batch.seq_lens,
            out,
            shard.logits_before,
            shard.most_reqs,
            num_ranks,
            shard.rank,
        )


@given(
    batch=batches(max_drafts=4), num_ranks=st.integers(2, 3), nans=st.booleans(), wide=st.booleans()
)
def test_results_are_packed(
    check: KernelCheck, batch: Batch, num_ranks: int, nans: bool, wide: bool
) -> None:
    """A rank without drafts has one column, one that verifies drafts more than the batch needs."""
    width = int(batch.logits_per_row.max())
    for shard in shards(batch, num_ranks):
        if shard.num_reqs == 0:
            continue  # such a rank packs nothing
        check.same(
            f"{LAUNCHES}.pack_sampler_output",
            untouched(shard.most_reqs, width + 2 + nans),
            batch.ints((shard.num_reqs, 6 if wide else 1), VOCAB_SIZE, torch.int64),
            batch.ints(shard.num_reqs, 5, torch.int32),
            batch.ints(shard.num_reqs, 5, torch.int32),
            batch.ints(shard.num_logits, 9, torch.int32) if nans else None,
            own_starts(batch, shard) if nans else None,
            width,
        )


def sources(batch: Batch, rows: int) -> torch.Tensor:
    """[num_reqs] int64: where each request's result is among `rows`."""
    return torch.from_numpy(batch.rng.permutation(rows)[: batch.num_reqs])


@given(batch=batches(max_drafts=4), nans=st.booleans())
def test_results_are_unpacked(check: KernelCheck, batch: Batch, nans: bool) -> None:
    width, rows = int(batch.logits_per_row.max()), 2 * MAX_NUM_REQS
    check.same(
        f"{LAUNCHES}.unpack_gathered_output",
        batch.ints((rows, width + 2 + nans), VOCAB_SIZE, torch.int64),
        sources(batch, rows),
        untouched(batch.num_reqs, width),
        untouched(batch.num_reqs, dtype=torch.int32),
        untouched(batch.num_reqs, dtype=torch.int32),
        untouched(batch.num_reqs, dtype=torch.int32) if nans else None,
    )


@given(
    batch=batches(max_drafts=4),
    num_ranks=st.integers(2, 3),
    columns=st.integers(1, 6),
    own_columns=st.integers(1, 8),
)
def test_logprobs_are_packed(
    check: KernelCheck, batch: Batch, num_ranks: int, columns: int, own_columns: int
) -> None:
    """A rank's own columns are padded or cut to those that ranks agreed on."""
    width = int(batch.logits_per_row.max())
    for shard in shards(batch, num_ranks):
        if shard.num_reqs == 0:
            continue
        rows = shard.most_reqs * width
        check.same(
            f"{LAUNCHES}.pack_logprobs",
            untouched(rows, columns + 1),
            untouched(rows, columns, dtype=torch.float32),
            batch.ints((shard.num_logits, own_columns), VOCAB_SIZE, torch.int64),
            batch.floats(shard.num_logits, own_columns),
            batch.ints(shard.num_logits, VOCAB_SIZE, torch.int64),
            own_starts(batch, shard),
            width,
        )


@given(batch=batches(max_drafts=4), columns=st.integers(1, 6))
def test_logprobs_are_unpacked(check: KernelCheck, batch: Batch, columns: int) -> None:
    width, rows = int(batch.logits_per_row.max()), 2 * MAX_NUM_REQS
    check.same(
        f"{LAUNCHES}.unpack_logprobs",
        batch.ints((rows * width, columns + 1), VOCAB_SIZE, torch.int64),
        batch.floats(rows * width, columns),
        sources(batch, rows),
        batch.cu_num_logits,
        untouched(batch.num_logits, columns),
        untouched(batch.num_logits, columns, dtype=torch.float32),
        untouched(batch.num_logits),
        width,
    )
