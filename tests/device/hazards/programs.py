# SPDX-License-Identifier: Apache-2.0
"""Published failures of Ascend serving in miniature, each as it was and as it was mended.

A program is a function of whether it is mended. It runs on torch_npu alone, ends by waiting for
the device, and marks with `# change:` the lines of its unmended form that a person would have to
change. Each of them launches something itself: a finding shows one frame unless more are asked for,
and of a launch in a helper that is the helper's.
"""

from __future__ import annotations

import ctypes
import inspect
import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.device.graph.test_task_groups import Attention, lengths_of
from tests.device.hccl.world import process_group
from tests.helpers.emulated import Gate, acl, check, handle

H2D = 1  # ACL_MEMCPY_HOST_TO_DEVICE
STEPS = 4


@dataclass(frozen=True)
class Hazard:
    """A program and what the order checker has to say of its unmended form."""

    run: Callable[[bool], None]
    source: str
    kinds: frozenset[str]  # at least one finding of each, with a marked line; of "A|B", of either
    follows: str  # the kind of what comes of it, and has to be found too; "" for none
    lines: frozenset[int]  # those that it marks; each is named


# Where the update stream runs ahead of the replay, the update is ordered before the replay that it
# must not be for, and what shows is its record, lost in the one before.
UPDATE_OR_RECORD = "unordered-update|unordered-record"

HAZARDS: dict[str, Hazard] = {}


def _marked(code: Callable[..., Any]) -> set[int]:
    lines, first = inspect.getsourcelines(code)
    return {number for number, line in enumerate(lines, first) if "# change:" in line}


def hazard(
    source: str, *kinds: str, follows: str = "", code: Callable[..., Any] | None = None
) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    """Enter a program into HAZARDS by its name. `code`: where its marks are, if elsewhere."""

    def enter(run: Callable[[bool], None]) -> Callable[[bool], None]:
        lines = frozenset(_marked(code or run))
        HAZARDS[run.__name__] = Hazard(run, source, frozenset(kinds), follows, lines)
        return run

    return enter


class SharedPayload:
    """Shared memory that a producer fills for a poller, as an executor's message queue does."""

    def __init__(self, elements: int) -> None:
        self._memory = mmap.mmap(-1, elements * 4)
        self.array = np.frombuffer(self._memory, dtype=np.int32)
        self.array[:] = 0

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    def register(self) -> None:
        """Make it page-locked for the device, as a transport that wants fast copies does."""
        code = acl().aclrtHostRegisterV2(
            ctypes.c_void_p(self.address), ctypes.c_uint64(self.array.nbytes), 0
        )
        check(code)

    def unregister(self) -> None:
        check(acl().aclrtHostUnregister(ctypes.c_void_p(self.address)))

    def copy_to(self, target: torch.Tensor, stream: torch.npu.Stream) -> tuple[Any, ...]:
        """Arguments of the copy that torch_npu makes for a source which it takes for pinned."""
        return (
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_size_t(self.array.nbytes),
            ctypes.c_void_p(self.address),
            ctypes.c_size_t(self.array.nbytes),
            H2D,
            handle(stream),
        )


def _captured_reader(inputs: torch.Tensor) -> tuple[torch.npu.NPUGraph, torch.Tensor]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = inputs * 2
    return graph, result


@hazard("xLLM 2043", "host-source-changed", "unordered-access")
def shm_payload_reused_during_replay(is_mended: bool) -> None:
    """A poller copies from shared memory on its own stream while a graph replays on another."""
    payload = SharedPayload(4096)
    payload.register()
    inputs = torch.zeros(4096, dtype=torch.int32, device="npu")
    graph, result = _captured_reader(inputs)
    torch.npu.synchronize()
    compute, prepare = torch.npu.current_stream(), torch.npu.Stream()

    copy = payload.copy_to(inputs, prepare)

    def poll() -> None:
        check(acl().aclrtMemcpyAsync(*copy))  # change: own the payload, copy it in order

    for step in range(STEPS):
        payload.array[:] = step
        if is_mended:
            owned = torch.from_numpy(payload.array.copy()).pin_memory()
            prepare.wait_stream(compute)
            with torch.npu.stream(prepare):
                inputs.copy_(owned, non_blocking=True)
            compute.wait_stream(prepare)
        else:
            poller = threading.Thread(target=poll)
            poller.start()
            poller.join()
        graph.replay()
        payload.array[:] = -1  # the producer goes on
        torch.npu.synchronize()
        assert not is_mended or (result.cpu() == 2 * step).all()
    payload.unregister()


@hazard("xLLM 2043 (POSIX shared memory described as pinned)", "unpinned-async-copy")
def shared_memory_labelled_pinned(is_mended: bool) -> None:
    """A tensor's label does not lock its pages: the copy is not the one that was asked for."""
    payload = SharedPayload(4096)
    inputs = torch.empty(4096, dtype=torch.int32, device="npu")
    torch.npu.synchronize()
    payload.array[:] = 5
    if is_mended:
        inputs.copy_(torch.from_numpy(payload.array.copy()).pin_memory(), non_blocking=True)
    else:
        copy = payload.copy_to(inputs, torch.npu.current_stream())
        check(acl().aclrtMemcpyAsync(*copy))  # change: copy from pinned memory
    torch.npu.synchronize()


@hazard("vllm-ascend 12071", "host-source-changed")
def query_start_loc_overwritten(is_mended: bool) -> None:
    """One pinned buffer for every step, written for the next before this one's copy has run."""
    query_start_loc = torch.zeros(17, dtype=torch.int32).pin_memory()
    on_device = torch.zeros(17, dtype=torch.int32, device="npu")
    for step in range(STEPS):
        query_start_loc.copy_(torch.arange(17) * (step + 1))  # change: write a buffer of its own
        source = query_start_loc.clone().pin_memory() if is_mended else query_start_loc
        on_device.copy_(source, non_blocking=True)
        on_device.add_(0)
    torch.npu.synchronize()
    if is_mended:
        assert torch.equal(on_device.cpu(), (torch.arange(17) * STEPS).int())


@hazard("vllm-ascend 16428", "host-source-changed")
def five_inputs_of_the_next_batch(is_mended: bool) -> None:
    """Five arrays that the runner keeps and fills again for the next batch."""
    host = [torch.zeros(n).pin_memory() for n in (64, 6640, 454, 6669, 6)]
    device = [torch.zeros(n, device="npu") for n in (64, 6640, 454, 6669, 6)]
    for step in range(STEPS):
        for source, target in zip(host, device, strict=True):
            if is_mended:
                target.copy_(torch.full_like(source, step).pin_memory(), non_blocking=True)
                continue
            source.fill_(step)  # change: fill a buffer that no copy reads
            target.copy_(source, non_blocking=True)
    torch.npu.synchronize()


@hazard("vllm-ascend 3372", "host-read-early")
def result_read_too_early(is_mended: bool) -> None:
    """Sampled tokens are read from pinned memory before their copy has run."""
    tokens = torch.arange(64, device="npu")
    results = torch.zeros(64, dtype=torch.int64).pin_memory()
    copy_stream = torch.npu.Stream()
    for step in range(STEPS):
        sampled = tokens + step
        copy_stream.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(copy_stream):
            results.copy_(sampled, non_blocking=True)
            copied = torch.npu.Event()
            copied.record()
        sampled.record_stream(copy_stream)
        if is_mended:
            copied.synchronize()
        seen = results.tolist()  # change: wait for the event before
        assert not is_mended or seen[0] == step
    torch.npu.synchronize()


class _Decode:
    """Replays whose attention is updated for each: the graph is captured, the steps are to come."""

    def __init__(self) -> None:
        self.attention, self.graph = Attention(), torch.npu.NPUGraph()
        self.attention.capture(self.graph)
        torch.npu.synchronize()

    def steps(self, updates: list[torch.npu.Stream], is_mended: bool) -> None:
        """STEPS of them, updated on these streams in turn."""
        attention, compute = self.attention, torch.npu.current_stream()
        for step in range(STEPS):
            update = updates[step % len(updates)]
            if is_mended:
                update.wait_stream(compute)
            self.graph.replay()
            with torch.npu.stream(update):
                torch.npu.graph_task_update_begin(update, attention.group)
                attention.run(lengths_of(step), attention.out)
                torch.npu.graph_task_update_end(update)
                attention.event.record(update)  # change: first wait for the replay before


@hazard("vllm-ascend 12944", UPDATE_OR_RECORD, code=_Decode)
def update_stream_does_not_wait(is_mended: bool) -> None:
    """A replay's tasks are updated for the next one before it has run them."""
    decode = _Decode()
    decode.steps([torch.npu.Stream()], is_mended)
    torch.npu.synchronize()  # while there is a graph: to destroy one waits 10 s for its replays


@hazard("vllm-ascend 13600", UPDATE_OR_RECORD, follows="deadlock", code=_Decode)
def two_update_streams(is_mended: bool) -> None:
    """Main and draft graph updates on two streams with no order between them, while the device is
    busy: of all their records one is left, and the second replay waits for ever.
    """
    decode, updates = _Decode(), [torch.npu.Stream(), torch.npu.Stream()]
    with Gate() as busy:
        busy.close()
        decode.steps(updates, is_mended)
        if not is_mended:
            for update in updates:
                update.synchronize()
        busy.open()
        torch.npu.synchronize()


@hazard("vllm-ascend 15954", "deadlock")
def host_read_in_the_replay_window(is_mended: bool) -> None:
    """The host reads a device value between a replay and the updates that the replay waits for."""
    attention, graph, update = Attention(), torch.npu.NPUGraph(), torch.npu.Stream()
    attention.capture(graph)
    value = torch.ones(1, device="npu")
    torch.npu.synchronize()
    for step in range(STEPS):
        update.wait_stream(torch.npu.current_stream())
        graph.replay()
        if not is_mended:
            value.item()  # change: read before the replay, or after the updates
        attention.update(update, lengths_of(step))
        if is_mended:
            value.item()
    torch.npu.synchronize()


@hazard("vllm-ascend 4233", "unordered-record")
def event_recorded_before_the_replay_before_ended(is_mended: bool) -> None:
    """The record for the next replay may come before this one's reset, and is then lost."""
    event, update = torch.npu.ExternalEvent(), torch.npu.Stream()
    graph, value = torch.npu.NPUGraph(), torch.zeros(64, device="npu")
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        value.add_(1)
    torch.npu.synchronize()
    for _ in range(STEPS):
        if is_mended:
            update.wait_stream(torch.npu.current_stream())
        graph.replay()
        event.record(update)  # change: let the stream wait for the replay before
    torch.npu.synchronize()


class _Rank:
    """One rank of data-parallel attention, as a thread: compute, copy and collective streams."""

    def __init__(self, rank: int, ranks: int, store: dist.Store) -> None:
        self.device, self.ranks = torch.device(f"npu:{rank}"), ranks
        torch.npu.set_device(self.device)
        self.group = process_group(store, rank, ranks)
        self.copy, self.collective = torch.npu.Stream(), torch.npu.Stream()
        self.lengths = torch.zeros(32, dtype=torch.int64).pin_memory()
        self.retracted = torch.zeros(32 * ranks, dtype=torch.int64).pin_memory()
        self.on_device = torch.zeros(32, dtype=torch.int64, device=self.device)

    def step(self, step: int, is_mended: bool) -> int:
        """One step with a KV cache so small that requests are retracted; how many are left."""
        compute = torch.npu.current_stream()
        lengths = torch.full((32,), step).pin_memory() if is_mended else self.lengths
        if not is_mended:
            lengths.fill_(step)  # change: fill a buffer that no copy reads
        self.copy.wait_stream(compute)
        with torch.npu.stream(self.copy):
            self.on_device.copy_(lengths, non_blocking=True)
        compute.wait_stream(self.copy)
        left = (self.on_device * 7) % 5
        self.collective.wait_stream(compute)
        with torch.npu.stream(self.collective):
            gathered = torch.empty(32 * self.ranks, dtype=torch.int64, device=self.device)
            self.group._allgather_base(gathered, left).wait()
        left.record_stream(self.collective)
        self.copy.wait_stream(self.collective)
        with torch.npu.stream(self.copy):
            self.retracted.copy_(gathered, non_blocking=True)
            done = torch.npu.Event()
            done.record()
        gathered.record_stream(self.copy)
        if is_mended:
            done.synchronize()
        return int(self.retracted.sum())  # change: wait for the copy before


@hazard("SGLang 39423", "host-source-changed", "host-read-early", code=_Rank)
def dp_attention_with_retraction(is_mended: bool) -> None:
    """Ranks decide from pinned buffers whose copies nobody waited for, and decide differently."""
    seen: dict[int, list[int]] = {}
    store = dist.HashStore()

    def serve(number: int) -> None:
        rank = _Rank(number, 2, store)
        seen[number] = [rank.step(step, is_mended) for step in range(STEPS)]
        torch.npu.synchronize()

    ranks = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if is_mended:
        assert seen[0] == seen[1] == [64 * ((step * 7) % 5) for step in range(STEPS)]


@hazard("xLLM 1894", "kernel-registration")
def two_threads_register_one_kernel(is_mended: bool) -> None:
    """Two workers of one process come to their first launch of a kernel at the same time: the one
    that is first stays at it until the other has come, however late that is.
    """
    values = [torch.ones(8, device="npu") for _ in range(2)]
    torch.npu.synchronize()
    if is_mended:
        torch.atan(values[0])

    def work(value: torch.Tensor) -> None:
        torch.npu.set_device(0)
        torch.atan(value)  # change: launch each kernel once before there are two threads

    acl().emu_check_hold_registration(1)
    workers = [threading.Thread(target=work, args=(value,)) for value in values]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    acl().emu_check_hold_registration(0)
    torch.npu.synchronize()
