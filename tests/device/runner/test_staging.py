# SPDX-License-Identifier: Apache-2.0
"""The staging ring: one copy per step, none of them waits for computation, no slot reused early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

from tests.helpers.emulated import Gate, counters, reset_counters
from vllm_ascend_mrv2.kernels import upload
from vllm_ascend_mrv2.runner.staging import (
    StagingRing,
)

CAPACITY = 4096


@pytest.fixture
def ring() -> Iterator[StagingRing]:
    made = StagingRing(torch.device("npu:0"), CAPACITY, num_slots=3)
    torch.npu.synchronize()
    yield made
    upload.use(None)


def h2d_copies() -> int:
    kinds = counters()["total"]["copies"]["h2d"].values()
    return sum(memory["count"] for kind in kinds for memory in kind.values())


def test_all_of_a_step_is_one_copy(ring: StagingRing) -> None:
    reset_counters()
    ring.begin_step()
    staged = [np.arange(5, dtype=np.int64), np.ones((2, 3), np.float32), np.array([True, False])]
    views = [ring.put(array) for array in staged]
    ring.flush()
    assert h2d_copies() == 1
    for view, array in zip(views, staged, strict=True):
        np.testing.assert_array_equal(view.cpu().numpy(), array)
    ring.end_step()


def test_nothing_staged_is_nothing_copied(ring: StagingRing) -> None:
    reset_counters()
    ring.begin_step()
    ring.flush()
    ring.end_step()
    assert h2d_copies() == 0


def test_what_was_put_is_a_snapshot(ring: StagingRing) -> None:
    ring.begin_step()
    array = np.arange(4, dtype=np.int32)
    view = ring.put(array)
    array[:] = -1  # its owner reuses the memory before the copy
    ring.flush()
    assert view.tolist() == [0, 1, 2, 3]
    ring.end_step()


def test_the_copy_does_not_wait_for_the_compute_stream(ring: StagingRing) -> None:
    """The compute stream is held by a gate: a copy that waited for it would not return."""
    with Gate() as gate:
        gate.close()
        ring.begin_step()
        view = ring.put(np.array([7], dtype=np.int64))
        ring.flush()
        result = view * 2  # ordered after the copy, so that it sees it
        ring.end_step()
        gate.open()
    assert result.item() == 14


def test_a_slot_waits_for_its_last_reader(ring: StagingRing) -> None:
    """Readers of three steps are held; the fourth step must not overwrite what the first reads."""
    results = []
    waits: list[str] = []
    ring.before_wait = waits.append

    def step(number: int) -> None:
        ring.begin_step()
        view = ring.put(np.array([number], dtype=np.int64))
        ring.flush()
        results.append(view + 100)
        ring.end_step()

    with Gate() as gate:
        gate.close()
        for number in range(3):
            step(number)
        assert not waits
        # Its copy waits for the held reader, so another thread makes it. One that did not wait
        # would be done long before the gate opens, and the first reader would see 3.
        fourth = threading.Thread(target=step, args=(3,))
        fourth.start()
        fourth.join(timeout=1)
        gate.open()
        fourth.join()
    assert waits == ["a copy into a slot that is still read"]
    assert [result.item() for result in results] == [100, 101, 102, 103]


def test_what_does_not_fit_is_copied_apart(ring: StagingRing) -> None:
    reset_counters()
    ring.begin_step()
    small = ring.put(np.array([1], dtype=np.int64))
    big = ring.put(np.arange(CAPACITY, dtype=np.int64))
    ring.flush()
    assert h2d_copies() == 2
    assert small.item() == 1
    assert big.sum().item() == CAPACITY * (CAPACITY - 1) // 2
    ring.end_step()


def test_actions_run_in_order_after_their_data(ring: StagingRing) -> None:
    target = torch.zeros(4, dtype=torch.int64, device="npu")
    ring.begin_step()
    first, second = ring.put(np.array([1, 1, 1, 1])), ring.put(np.array([2, 2]))
    ring.then(lambda: target.copy_(first))
    ring.then(lambda: target[:2].copy_(second))
    assert target.tolist() == [0, 0, 0, 0]
    ring.flush()
    assert target.tolist() == [2, 2, 1, 1]
    ring.end_step()


def test_uploads_go_through_the_open_ring_only(ring: StagingRing) -> None:
    upload.use(ring)
    reset_counters()
    before = upload.tensor_h2d([1, 2, 3], device="npu", dtype=torch.int64)
    ring.begin_step()
    idx = upload.step_tensor_h2d(np.array([4, 5]), device="npu", dtype=torch.int64)
    out = torch.empty(2, dtype=torch.int32, device="npu")
    upload.step_tensor_h2d(np.array([6, 7], np.int32), out=out)
    assert h2d_copies() == 2  # one before the step, one for both in it
    ring.end_step()
    assert (before.tolist(), idx.tolist(), out.tolist()) == ([1, 2, 3], [4, 5], [6, 7])


def sent_in_steps(ring: StagingRing, inputs: list[list[int]]) -> list[int]:
    """Copies of steps that have the same rows each, and these starts."""
    out = torch.zeros(3, dtype=torch.int32, device="npu")
    sent = []
    for starts in inputs:
        reset_counters()
        ring.begin_step()
        rows = upload.step_tensor_h2d(np.array([4, 5]), device="npu", dtype=torch.int64)
        upload.step_tensor_h2d(np.array(starts, np.int32), out=out)
        assert (rows.tolist(), out.tolist()) == ([4, 5], starts)
        out.fill_(-1)  # what is kept is not `out`
        ring.end_step()
        sent.append(h2d_copies())
    return sent


STEPS = [[0, 1, 2]] * 4 + [[0, 4, 8]] + [[0, 1, 2]]


def test_inputs_that_come_again_are_sent_twice_and_then_no_more(ring: StagingRing) -> None:
    upload.use(ring, keep_repeats=True)
    assert sent_in_steps(ring, STEPS) == [1, 1, 0, 0, 1, 0]


def test_who_did_not_ask_for_it_has_no_input_kept_or_looked_at(
    ring: StagingRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*_: object) -> None:
        raise AssertionError("an input was looked at")

    monkeypatch.setattr(upload._Repeats, "on_device", looked)
    upload.use(ring)
    assert sent_in_steps(ring, STEPS) == [1] * len(STEPS)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_kept_input_that_somebody_wrote_is_not_given_out_again(
    ring: StagingRing, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    upload.use(ring, keep_repeats=True)
    given = []
    for step in range(6):
        with mode():
            ring.begin_step()
            rows = upload.step_tensor_h2d(np.array([4, 5]), device="npu", dtype=torch.int64)
            upload.flush()
            assert rows.tolist() == [4, 5], step
            ring.end_step()
            if step == 3:
                rows[1:].add_(7)
        given.append(rows)
    assert given[3] is given[2]
    assert given[4] is not given[3]
    assert given[5] is given[4]


def test_inputs_that_never_come_again_are_not_kept(ring: StagingRing) -> None:
    upload.use(ring, keep_repeats=True)
    before = torch.npu.memory_allocated()
    for number in range(100):
        ring.begin_step()
        rows = upload.step_tensor_h2d(np.array([number, 5]), device="npu", dtype=torch.int64)
        upload.flush()
        assert rows.tolist() == [number, 5]
        ring.end_step()
    assert torch.npu.memory_allocated() == before


def test_no_more_inputs_are_kept_than_their_number(ring: StagingRing) -> None:
    upload.use(ring, keep_repeats=True)
    before = torch.npu.memory_allocated()
    for number in range(3 * upload.KEPT_INPUTS):
        for _ in range(2):
            ring.begin_step()
            rows = upload.step_tensor_h2d(np.array([number, 5]), device="npu", dtype=torch.int64)
            upload.flush()
            ring.end_step()
    del rows
    kept = (torch.npu.memory_allocated() - before) // 512  # the allocator's smallest block
    assert 0 < kept <= upload.KEPT_INPUTS
