# SPDX-License-Identifier: Apache-2.0
"""The sequence-length authority: an exhaustive table of its choice, and the mirror's proof."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from vllm_ascend_mrv2.runner.seq_lens import (
    SeqLensAuthority,
    SeqLensFacts,
    SeqLensMirror,
    VerdictLog,
    decide_seq_lens,
)

PROVEN = SeqLensFacts(
    forced_to_device=False,
    has_speculator=False,
    has_drafts=False,
    hides_unverified=False,
    new_tokens_per_step=1,
    is_diffusion=False,
    mirror_complete=True,
    mirror_agrees=True,
)
# Fact -> every value that forbids the mirror, in the order in which reasons win.
UNSAFE: dict[str, tuple[object, ...]] = {
    "forced_to_device": (True,),
    "has_speculator": (True,),
    "has_drafts": (True,),
    "new_tokens_per_step": (0, 2, 5),
    "is_diffusion": (True,),
    "mirror_complete": (False,),
    "mirror_agrees": (False,),
}
WORD = {
    "forced_to_device": "VLLM_ASCEND_MRV2_SEQ_LENS",
    "has_speculator": "speculator",
    "has_drafts": "drafts are being verified",
    "new_tokens_per_step": "other than one",
    "is_diffusion": "diffusion",
    "mirror_complete": "did not see",
    "mirror_agrees": "differ",
}


# A mask forbids nothing, and allows nothing but a bound.
MASKED = {"hides_unverified": (True,)}


def all_rows() -> list[SeqLensFacts]:
    choices = {name: (getattr(PROVEN, name), *values) for name, values in (UNSAFE | MASKED).items()}
    return [
        SeqLensFacts(**dict(zip(choices, row, strict=True)))
        for row in itertools.product(*choices.values())
    ]


def test_the_table_covers_every_fact() -> None:
    assert set(UNSAFE | MASKED) == set(SeqLensFacts.__dataclass_fields__)


def test_only_the_proven_row_lets_the_scheduler_speak() -> None:
    """All combinations of all facts: one row of them, masked or not, may skip the device."""
    rows = all_rows()
    assert len(rows) == 2**7 * 4
    by_scheduler = [
        row for row in rows if decide_seq_lens(row).authority is SeqLensAuthority.SCHEDULER
    ]
    assert by_scheduler == [PROVEN, replace(PROVEN, hides_unverified=True)]


def test_only_masked_verification_takes_an_upper_bound() -> None:
    """A speculator, a mask, and nothing else than rejected drafts between count and bound."""
    masked = replace(PROVEN, has_speculator=True, hides_unverified=True)
    wanted = [
        replace(masked, has_drafts=drafts, mirror_agrees=agrees)
        for drafts in (False, True)
        for agrees in (True, False)
    ]
    bounded = [
        row for row in all_rows() if decide_seq_lens(row).authority is SeqLensAuthority.BOUND
    ]
    assert bounded == wanted


@pytest.mark.parametrize("name", UNSAFE)
def test_the_first_reason_against_the_mirror_is_given(name: str) -> None:
    later = list(UNSAFE)[list(UNSAFE).index(name) + 1 :]
    for value in UNSAFE[name]:
        alone = replace(PROVEN, **{name: value})
        with_later = replace(alone, **{other: UNSAFE[other][0] for other in later})
        for facts in (alone, with_later):
            verdict = decide_seq_lens(facts)
            assert verdict.authority is SeqLensAuthority.DEVICE
            assert WORD[name] in verdict.reason


def test_mirror_follows_what_it_saw() -> None:
    mirror = SeqLensMirror(max_num_reqs=4)
    rows = np.array([2, 0])
    assert not mirror.follows(rows)
    mirror.add(0, 0)
    mirror.add(2, 16)  # 16 tokens came from the prefix cache
    assert mirror.follows(rows)
    assert mirror.agrees(rows, np.array([16, 0]))
    mirror.advance(rows, np.array([5, 7]))
    assert mirror.agrees(rows, np.array([21, 7]))
    assert not mirror.agrees(rows, np.array([20, 7]))  # the scheduler took a token back
    mirror.correct(rows, np.array([20, 7]))
    assert mirror.agrees(rows, np.array([20, 7]))
    mirror.remove(2)  # finished or preempted
    assert not mirror.follows(rows)
    assert mirror.follows(np.array([0]))
    mirror.add(2, 0)  # resumed: computed from the start again
    assert mirror.agrees(rows, np.array([0, 7]))


# What a step with speculation may look like: no such step is left to the scheduler.
SPECULATION: dict[str, dict[str, object]] = {
    "drafts are verified": {"has_speculator": True, "has_drafts": True},
    "no drafts were scheduled": {"has_speculator": True},
    "a prompt's chunk, which verifies nothing": {"has_speculator": True, "mirror_agrees": True},
    "a request that was preempted after a rejection": {
        "has_speculator": True,
        "mirror_agrees": False,
    },
    "a resumed request that the mirror has not seen": {
        "has_speculator": True,
        "mirror_complete": False,
    },
    "a pipeline rank before the last, which has no speculator": {
        "has_speculator": True,
        "has_drafts": True,
    },
    "drafts of an engine whose speculator is gone": {"has_drafts": True},
    "a diffusion step": {"is_diffusion": True, "new_tokens_per_step": 0},
}


@pytest.mark.parametrize("step", SPECULATION)
def test_a_step_of_speculation_asks_the_device(step: str) -> None:
    verdict = decide_seq_lens(replace(PROVEN, **SPECULATION[step]))
    assert verdict.authority is SeqLensAuthority.DEVICE
    assert verdict.reason


def test_a_read_does_not_undo_what_came_after_it_began() -> None:
    mirror = SeqLensMirror(max_num_reqs=3)
    mirror.add(0, 0)
    mirror.add(1, 16)
    mirror.begin_read()
    mirror.add(2, 48)  # a new request, while the counts of the step before are on their way
    mirror.remove(1)
    mirror.add(1, 0)  # and one in a row that another had
    mirror.end_read(np.array([7, 19, 0], dtype=np.int32))
    assert mirror.computed(np.array([0, 1, 2])).tolist() == [7, 0, 48]
    assert mirror.computed(np.array([2])).dtype == np.int32
    mirror.begin_read()
    mirror.end_read(np.array([9, 2, 50], dtype=np.int32))
    assert mirror.computed(np.array([0, 1, 2])).tolist() == [9, 2, 50]


def test_each_reason_is_new_once() -> None:
    log = VerdictLog()
    device = decide_seq_lens(replace(PROVEN, has_drafts=True))
    assert [log.note(v) for v in (device, device, decide_seq_lens(PROVEN))] == [True, False, True]
    assert log.counts[device] == 2
