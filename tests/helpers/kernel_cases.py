# SPDX-License-Identifier: Apache-2.0
"""Random batches for kernel tests: request state as core keeps it, small enough for an
interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

MAX_NUM_REQS = 7
MAX_MODEL_LEN = 40
VOCAB_SIZE = 97


@dataclass(frozen=True)
class Batch:
    """One step's batch; every row is prefilling, finishing its prompt, or decoding.

    idx_mapping [R] int64, query_start_loc [R + 1 + padding] int32, the rest [MAX_NUM_REQS] int32
    (or [MAX_NUM_REQS, ...]); num_tokens scheduled tokens; cu_num_logits [R + 1] int32, a row with
    d drafts has d + 1 logits.
    """

    rng: np.random.Generator
    idx_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    num_tokens: int
    num_computed_tokens: torch.Tensor
    prompt_len: torch.Tensor
    prefill_len: torch.Tensor
    total_len: torch.Tensor
    all_token_ids: torch.Tensor
    last_sampled_tokens: torch.Tensor
    cu_num_logits: torch.Tensor

    @property
    def num_reqs(self) -> int:
        return self.idx_mapping.shape[0]

    @property
    def seq_lens(self) -> torch.Tensor:
        """[R] int32."""
        starts = self.query_start_loc[: self.num_reqs + 1]
        return (self.num_computed_tokens[self.idx_mapping] + starts.diff()).to(torch.int32)

    @property
    def num_logits(self) -> int:
        return int(self.cu_num_logits[-1])

    @property
    def logits_per_row(self) -> torch.Tensor:
        """[R] int64."""
        return self.cu_num_logits.diff().to(torch.int64)

    @property
    def expanded_idx_mapping(self) -> torch.Tensor:
        """[num_logits] int64: the request state row of each logit."""
        return self.idx_mapping.repeat_interleave(self.logits_per_row)

    @property
    def local_positions(self) -> torch.Tensor:
        """[num_logits] int32: each logit's place among its row's."""
        starts = self.cu_num_logits[:-1].repeat_interleave(self.logits_per_row)
        return torch.arange(self.num_logits, dtype=torch.int32) - starts

    def ints(self, shape: int | tuple[int, ...], high: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(0, high, shape)).to(dtype)

    def floats(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32) * 3)


def _int32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.int32))


@st.composite
def batches(draw: st.DrawFn, max_query: int = 9, padding: int = 2, max_drafts: int = 0) -> Batch:
    """max_drafts: of each decoding row, and now and then of one that ends its prompt."""
    num_reqs = draw(st.integers(1, MAX_NUM_REQS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.permutation(MAX_NUM_REQS)[:num_reqs]
    prompt_len = rng.integers(1, 20, MAX_NUM_REQS)
    prefill_len = prompt_len + rng.integers(0, 4, MAX_NUM_REQS)
    decoding = rng.random(MAX_NUM_REQS) < 0.5
    total_len = prefill_len + np.where(decoding, rng.integers(1, 9, MAX_NUM_REQS), 0)
    # a decoding row computes its last token; a prefilling one a chunk that may end its prompt
    num_computed = np.where(decoding, total_len - 1, rng.integers(0, prefill_len))
    chunk = np.minimum(rng.integers(1, max_query + 1, MAX_NUM_REQS), prefill_len - num_computed)
    drafts = rng.integers(0, max_drafts + 1, MAX_NUM_REQS)
    # A row may be padded with placeholders while it still is in its prompt.
    drafts = np.where(decoding | (rng.random(MAX_NUM_REQS) < 0.2), drafts, 0)
    query = (np.where(decoding, 1, chunk) + drafts)[rows]
    logits = np.concatenate(([0], np.cumsum(drafts[rows] + 1)))
    starts = np.concatenate(([0], np.cumsum(query)))
    return Batch(
        rng=rng,
        idx_mapping=torch.from_numpy(rows.astype(np.int64)),
        query_start_loc=_int32(np.concatenate((starts, np.full(padding, starts[-1])))),
        num_tokens=int(starts[-1]),
        num_computed_tokens=_int32(num_computed),
        prompt_len=_int32(prompt_len),
        prefill_len=_int32(prefill_len),
        total_len=_int32(total_len),
        all_token_ids=_int32(rng.integers(0, VOCAB_SIZE, (MAX_NUM_REQS, MAX_MODEL_LEN))),
        last_sampled_tokens=torch.from_numpy(rng.integers(0, VOCAB_SIZE, (MAX_NUM_REQS, 1))),
        cu_num_logits=_int32(logits),
    )
