# SPDX-License-Identifier: Apache-2.0
"""Streams and events on torch_npu: what waits, what does not, and in which order things happen."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from tests.helpers.emulated import Gate, passes


def test_launching_does_not_wait_for_the_device() -> None:
    x = torch.ones(8, device="npu")
    with Gate() as gate:
        gate.close()
        y = x + 1
        event = torch.npu.Event()
        event.record()
        assert not event.query()
        assert not torch.npu.current_stream().query()
        gate.open()
        event.synchronize()
        assert event.query()
    assert y.cpu().tolist() == [2.0] * 8


def test_a_stream_waits_for_an_event_of_another() -> None:
    producer, consumer = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(1000, device="npu")
    with Gate() as gate:
        gate.close(producer)
        with torch.npu.stream(producer):
            x.add_(1)
            event = producer.record_event()
        consumer.wait_event(event)
        with torch.npu.stream(consumer):
            y = x * 2
        time.sleep(0.05)
        assert not consumer.query()
        gate.open()
        consumer.synchronize()
    assert (y.cpu() == 2).all()


def test_a_missing_wait_reads_too_early() -> None:
    producer, consumer = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(1000, device="npu")
    with Gate() as gate:
        gate.close(producer)
        with torch.npu.stream(producer):
            x.add_(1)
        with torch.npu.stream(consumer):
            y = x * 2
        consumer.synchronize()
        gate.open()
    assert (y.cpu() == 0).all()
    assert (x.cpu() == 1).all()


def test_an_event_stands_for_its_latest_record_at_the_time_of_the_wait() -> None:
    first, second, waiter = (torch.npu.Stream() for _ in range(3))
    event = torch.npu.Event()
    event.record(first)
    with Gate() as gate:
        waiter.wait_event(event)  # the record on `first`, done at once
        gate.close(second)
        event.record(second)
        waiter.synchronize()  # would hang if the later record counted
        assert not event.query()
        gate.open()
        event.synchronize()


def test_elapsed_time_is_of_the_device() -> None:
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    with Gate() as gate:
        start.record()
        gate.close()
        end.record()
        start.synchronize()
        time.sleep(0.03)
        gate.open()
        end.synchronize()
    assert 25 < start.elapsed_time(end) < 5000


def test_synchronising_one_stream_leaves_others_running() -> None:
    busy, idle = torch.npu.Stream(), torch.npu.Stream()
    with Gate() as gate:
        gate.close(busy)
        with torch.npu.stream(idle):
            y = torch.ones(4, device="npu") + 1
        idle.synchronize()
        assert not busy.query()
        gate.open()
    assert y.cpu().tolist() == [2.0] * 4


def test_threads_have_their_own_device_and_stream() -> None:
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            device = index % 2
            torch.npu.set_device(device)
            stream = torch.npu.Stream()
            with torch.npu.stream(stream):
                x = torch.full((64, 64), float(index), device="npu")
                for _ in range(50):
                    x = x + 1
                event = stream.record_event()
            event.synchronize()
            assert torch.npu.current_device() == device
            assert x.device.index == device
            assert (x.cpu() == index + 50).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert torch.npu.current_device() == 0


@pytest.mark.parametrize(("queue", "seed"), [("0", None), ("0", "1"), ("1", "2")])
def test_a_program_gives_the_same_in_every_mode(queue: str, seed: str | None) -> None:
    """Streams, events, copies and allocator reuse, in both task queue modes and under delays."""
    passes(
        """
        import torch
        side = torch.npu.Stream()
        for k in range(60):
            a = torch.full((64, 64), 1.0, device="npu")
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                b = (a @ a).sum()
                a.record_stream(side)
            del a
            c = torch.zeros(64, 64, device="npu")  # may reuse the memory of a, but not too early
            torch.npu.current_stream().wait_stream(side)
            assert abs(b.item() - 64**3) < 1, (k, b.item())
            pinned = torch.full((32,), k).pin_memory()
            d = pinned.to("npu", non_blocking=True) + 1
            back = torch.empty(32, dtype=d.dtype).pin_memory()
            back.copy_(d, non_blocking=True)
            torch.npu.current_stream().synchronize()
            assert (back == k + 1).all(), k
        """,
        TASK_QUEUE_ENABLE=queue,
        ASCEND_EMU_SCHEDULE_SEED=seed,
    )


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_adversarial_scheduler_shows_a_missing_wait(seed: str) -> None:
    output = passes(
        """
        import torch
        a, b = torch.npu.Stream(), torch.npu.Stream()

        def rounds_with_wrong_data(wait):
            wrong = 0
            for _ in range(40):
                x = torch.zeros(64, device="npu")
                torch.npu.synchronize()
                with torch.npu.stream(a):
                    x.add_(1)
                b.npu_stream  # flushes torch_npu's queue: the order of submission is fixed
                if wait:
                    b.wait_stream(a)
                with torch.npu.stream(b):
                    y = x * 2
                torch.npu.synchronize()
                wrong += int((y.cpu() != 2).any())
            return wrong

        print(rounds_with_wrong_data(False), rounds_with_wrong_data(True))
        """,
        ASCEND_EMU_SCHEDULE_SEED=seed,
    )
    racy, ordered = map(int, output.split())
    assert racy > 0
    assert ordered == 0
