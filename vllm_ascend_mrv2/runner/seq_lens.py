# SPDX-License-Identifier: Apache-2.0
"""Who may say how long the sequences of a batch are (sequence-length authority).

FIA takes KV lengths as host integers. The scheduler's mirror of them is right only where every
request is proven to advance by exactly what was scheduled; everything else is read back from
the device. This file decides, and keeps the proof; it starts no copy itself and knows no vLLM
type.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np


class SeqLensAuthority(enum.Enum):
    """The source of a step's host sequence lengths."""

    SCHEDULER = "scheduler"  # CPU mirror, no device read
    DEVICE = "device"  # corrected device value, one D2H and one wait
    BOUND = "upper bound"  # the scheduler's; the device hides what lies beyond the true length


@dataclass(frozen=True)
class SeqLensFacts:
    """All that the choice depends on. Unknown must be given as the unsafe value.

    forced_to_device: the debug switch VLLM_ASCEND_MRV2_SEQ_LENS=device.
    has_speculator: some rank has a speculator, so a step may accept fewer tokens than scheduled.
    has_drafts: this step, or one in flight before it, verifies draft tokens.
    hides_unverified: attention sees, by a mask made on the device, no key beyond the true lengths.
    new_tokens_per_step: core's num_new_sampled_tokens_per_step (1 for autoregressive decoding).
    is_diffusion: the model rewrites tokens it already produced.
    mirror_complete: the mirror saw the add or resume of every request in the batch.
    mirror_agrees: for every request, the scheduler's count equals the mirror's own count.
    """

    forced_to_device: bool
    has_speculator: bool
    has_drafts: bool
    hides_unverified: bool
    new_tokens_per_step: int
    is_diffusion: bool
    mirror_complete: bool
    mirror_agrees: bool


@dataclass(frozen=True)
class SeqLensVerdict:
    """The authority for one step, and why."""

    authority: SeqLensAuthority
    reason: str


_PROVEN = SeqLensVerdict(
    SeqLensAuthority.SCHEDULER,
    "every request advances by exactly what was scheduled: one sampled token per step, no "
    "drafts, and the mirror has followed each request since it was added",
)


_BOUND = SeqLensVerdict(
    SeqLensAuthority.BOUND,
    "drafts can only make the scheduler's count too high, and a mask hides on the device what is",
)


def _device(reason: str) -> SeqLensVerdict:
    return SeqLensVerdict(SeqLensAuthority.DEVICE, reason)


_FORCED = _device("VLLM_ASCEND_MRV2_SEQ_LENS=device")
_SPECULATOR = _device("a speculator is loaded: rejected drafts make the scheduler's count too high")
_DRAFTS = _device("drafts are being verified: the device knows how many were accepted")
_MULTI_TOKEN = _device("a step may add a number of tokens other than one")
_DIFFUSION = _device("a diffusion step does not only append")
_MIRROR_GAP = _device("the mirror did not see a request of this batch being added or resumed")
_MIRROR_DISAGREES = _device("the scheduler's count and the mirror's differ")


def decide_seq_lens(facts: SeqLensFacts) -> SeqLensVerdict:
    """Choose the authority for one step. Pure; the first reason against the mirror wins."""
    if facts.forced_to_device:
        return _FORCED
    if facts.has_speculator:
        is_bounded = (
            facts.hides_unverified
            and facts.new_tokens_per_step == 1
            and not facts.is_diffusion
            and facts.mirror_complete
        )
        return _BOUND if is_bounded else _SPECULATOR
    if facts.has_drafts:
        return _DRAFTS
    if facts.new_tokens_per_step != 1:
        return _MULTI_TOKEN
    if facts.is_diffusion:
        return _DIFFUSION
    if not facts.mirror_complete:
        return _MIRROR_GAP
    if not facts.mirror_agrees:
        return _MIRROR_DISAGREES
    return _PROVEN


class SeqLensMirror:
    """The CPU's own count of computed tokens per request state row, and what it has proof of.

    Independent of the scheduler's numbers after a request was added, so that a disagreement
    shows. All step-path methods are vectorised over the batch.
    """

    def __init__(self, max_num_reqs: int) -> None:
        self._followed = np.zeros(max_num_reqs, dtype=bool)
        self._num_computed = np.zeros(max_num_reqs, dtype=np.int64)
        self._is_newer = np.zeros(max_num_reqs, dtype=bool)  # than the read that has begun

    def add(self, row: int, num_computed_tokens: int) -> None:
        """A request was added, or resumed after preemption, with this many tokens computed."""
        self._followed[row] = True
        self._num_computed[row] = num_computed_tokens
        self._is_newer[row] = True

    def remove(self, row: int) -> None:
        """A request finished or was preempted: nothing is known of its row any more."""
        self._followed[row] = False

    def follows(self, rows: np.ndarray) -> bool:
        """Whether the add of every row was seen. rows: [num_reqs] integer."""
        return bool(self._followed[rows].all())

    def agrees(self, rows: np.ndarray, num_computed_tokens: np.ndarray) -> bool:
        """Whether the scheduler's counts are the mirror's. Both arguments: [num_reqs]."""
        return bool(np.array_equal(self._num_computed[rows], num_computed_tokens))

    def advance(self, rows: np.ndarray, num_scheduled_tokens: np.ndarray) -> None:
        """The step now being launched computes this many tokens. Both: [num_reqs]."""
        self._num_computed[rows] += num_scheduled_tokens

    def correct(self, rows: np.ndarray, num_computed_tokens: np.ndarray) -> None:
        """The device has spoken: the step now being launched ends at these counts. [num_reqs]."""
        self._num_computed[rows] = num_computed_tokens

    def begin_read(self) -> None:
        """The counts that `end_read` will bring are those of now."""
        self._is_newer[:] = False

    def end_read(self, num_computed_tokens: np.ndarray) -> None:
        """The device has spoken about all rows, [max_num_reqs]; those added since know better."""
        np.copyto(self._num_computed, num_computed_tokens, where=~self._is_newer)

    def computed(self, rows: np.ndarray) -> np.ndarray:
        """The mirror's counts of `rows`, [num_reqs] int32."""
        return self._num_computed[rows].astype(np.int32)


V = TypeVar("V", bound=Hashable)


class VerdictLog(Generic[V]):
    """Counts verdicts, each a choice with its reason; tells which are new."""

    def __init__(self) -> None:
        self.counts: Counter[V] = Counter()

    def note(self, verdict: V) -> bool:
        """Count one step. True the first time this verdict is seen."""
        self.counts[verdict] += 1
        return self.counts[verdict] == 1
