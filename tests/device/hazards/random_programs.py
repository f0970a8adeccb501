# SPDX-License-Identifier: Apache-2.0
"""Random programs of streams, events, copies and host waits, and what happens before what in them.

The reference is written for this test and shares nothing with the checker: it lists every pair of
operations and asks a closure over explicit edges. `python -m tests.device.hazards.random_programs
COUNT` runs COUNT programs in this process, whose checker must be on; it needs no torch.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STREAMS, EVENTS, BUFFERS, PIECES = 3, 3, 3, 4
PIECE_BYTES = 4096
D2D, D2H = 3, 2

acl = ctypes.CDLL("libascendcl.so")
acl.emu_check_json.restype = ctypes.c_size_t
acl.emu_check_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


@dataclass(frozen=True)
class Place:
    """Consecutive pieces of one buffer."""

    buffer: int
    first: int
    count: int

    def pieces(self) -> set[tuple[int, int]]:
        return {(self.buffer, self.first + i) for i in range(self.count)}

    @property
    def bytes(self) -> int:
        return self.count * PIECE_BYTES


places = st.builds(
    lambda buffer, first, count: Place(buffer, first, min(count, PIECES - first)),
    st.integers(0, BUFFERS - 1),
    st.integers(0, PIECES - 1),
    st.integers(1, 2),
)
streams, events = st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)
operations = st.one_of(
    st.tuples(st.just("copy"), streams, places, places),
    st.tuples(st.just("copy"), streams, places, places),
    st.tuples(st.just("fill"), streams, places),
    st.tuples(st.just("record"), streams, events),
    st.tuples(st.just("wait"), streams, events),
    st.tuples(st.just("synchronize stream"), streams),
    st.tuples(st.just("synchronize event"), events),
    st.tuples(st.just("synchronize device")),
    st.tuples(st.just("read on the host"), places),
    st.tuples(st.just("free and allocate"), st.integers(0, BUFFERS - 1)),
)
programs = st.lists(operations, min_size=2, max_size=24)


class Reference:
    """Nodes in order of submission, each with the set of nodes that come before it."""

    def __init__(self) -> None:
        self.before: list[set[int]] = []
        self.reads: list[set[tuple[int, int, int]]] = []
        self.writes: list[set[tuple[int, int, int]]] = []
        self.last_of: list[int | None] = [None] * STREAMS
        self.record_of: list[int | None] = [None] * EVENTS
        self.host: set[int] = set()  # what the host comes after
        self.generation = [0] * BUFFERS  # of a buffer's memory
        self.frees: list[tuple[int, set[int]]] = []  # pairs of memory in use at a free

    def node(self, after: set[int]) -> int:
        closed = set(after)
        for other in after:
            closed |= self.before[other]
        self.before.append(closed)
        self.reads.append(set())
        self.writes.append(set())
        return len(self.before) - 1

    def bytes_of(self, place: Place) -> set[tuple[int, int, int]]:
        return {(b, self.generation[b], p) for b, p in place.pieces()}

    def on_stream(self, stream: int, more: int | None = None) -> int:
        after = set(self.host)
        for other in (self.last_of[stream], more):
            if other is not None:
                after.add(other)
        self.last_of[stream] = made = self.node(after)
        return made

    def host_knows(self, node: int | None) -> None:
        if node is not None:
            self.host |= {node} | self.before[node]

    def races(self) -> set[tuple[int, int]]:
        found = set()
        for second in range(len(self.before)):
            for first in range(second):
                if first in self.before[second]:
                    continue
                if (
                    self.writes[first] & (self.writes[second] | self.reads[second])
                    or self.reads[first] & self.writes[second]
                ):
                    found.add((first, second))
        return found


class Device:
    """The real calls."""

    def __init__(self) -> None:
        self.ok(acl.aclrtSetDevice(0))
        self.streams = [self.made(acl.aclrtCreateStream) for _ in range(STREAMS)]
        self.buffers = [self.allocate() for _ in range(BUFFERS)]
        self.host = ctypes.create_string_buffer(PIECES * PIECE_BYTES)

    @staticmethod
    def ok(code: int) -> None:
        assert code == 0, code

    def made(self, create: Any, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.ok(create(ctypes.byref(handle), *arguments))
        return handle

    def allocate(self) -> ctypes.c_void_p:
        return self.made(acl.aclrtMalloc, ctypes.c_size_t(PIECES * PIECE_BYTES), 0)

    def address(self, place: Place) -> ctypes.c_void_p:
        begin = self.buffers[place.buffer].value
        assert begin is not None
        return ctypes.c_void_p(begin + place.first * PIECE_BYTES)


def run(device: Device, program: list[tuple[Any, ...]]) -> tuple[Reference, list[dict[str, Any]]]:
    """Run it for real, and say what comes before what."""
    device.ok(acl.aclrtSynchronizeDevice())
    acl.emu_check_reset()
    handles = [device.made(acl.aclrtCreateEvent) for _ in range(EVENTS)]
    reference = Reference()
    for what, *arguments in program:
        if what == "copy":
            stream, source, target = arguments
            size = min(source.bytes, target.bytes)
            source = Place(source.buffer, source.first, size // PIECE_BYTES)
            target = Place(target.buffer, target.first, size // PIECE_BYTES)
            node = reference.on_stream(stream)
            reference.reads[node] = reference.bytes_of(source)
            reference.writes[node] = reference.bytes_of(target)
            length = ctypes.c_size_t(size)
            to, origin = device.address(target), device.address(source)
            device.ok(acl.aclrtMemcpyAsync(to, length, origin, length, D2D, device.streams[stream]))
        elif what == "fill":
            stream, target = arguments
            node = reference.on_stream(stream)
            reference.writes[node] = reference.bytes_of(target)
            length = ctypes.c_size_t(target.bytes)
            where = device.address(target)
            device.ok(acl.aclrtMemsetAsync(where, length, 1, length, device.streams[stream]))
        elif what == "record":
            stream, event = arguments
            reference.record_of[event] = reference.on_stream(stream)
            device.ok(acl.aclrtRecordEvent(handles[event], device.streams[stream]))
        elif what == "wait":
            stream, event = arguments
            if reference.record_of[event] is not None:  # else no task is made of it
                reference.on_stream(stream, reference.record_of[event])
            device.ok(acl.aclrtStreamWaitEvent(device.streams[stream], handles[event]))
        elif what == "synchronize stream":
            device.ok(acl.aclrtSynchronizeStream(device.streams[arguments[0]]))
            reference.host_knows(reference.last_of[arguments[0]])
        elif what == "synchronize event":
            device.ok(acl.aclrtSynchronizeEvent(handles[arguments[0]]))
            reference.host_knows(reference.record_of[arguments[0]])
        elif what == "synchronize device":
            device.ok(acl.aclrtSynchronizeDevice())
            for last in reference.last_of:
                reference.host_knows(last)
        elif what == "read on the host":
            (source,) = arguments
            node = reference.node(set(reference.host))
            reference.reads[node] = reference.bytes_of(source)
            reference.host_knows(node)
            length = ctypes.c_size_t(source.bytes)
            origin = device.address(source)
            device.ok(acl.aclrtMemcpy(device.host, length, origin, length, D2H))
        else:
            # Freed under a running task, memory would fault: the device comes first, the host's
            # knowledge of it does not change what others are ordered after.
            (buffer,) = arguments
            device.ok(acl.aclrtSynchronizeDevice())
            for last in reference.last_of:
                reference.host_knows(last)
            reference.generation[buffer] += 1
            device.ok(acl.aclrtFree(device.buffers[buffer]))
            device.buffers[buffer] = device.allocate()
    device.ok(acl.aclrtSynchronizeDevice())
    for handle in handles:
        device.ok(acl.aclrtDestroyEvent(handle))
    size = acl.emu_check_json(None, 0) + 4096
    text = ctypes.create_string_buffer(size)
    acl.emu_check_json(text, size)
    return reference, json.loads(text.value)["findings"]


def check(device: Device, program: list[tuple[Any, ...]], totals: dict[str, int]) -> None:
    """The checker and the reference agree on whether there is a race, and where."""
    reference, findings = run(device, program)
    races = reference.races()
    totals["programs"] += 1
    totals["with a race"] += bool(races)
    assert bool(findings) == bool(races), (program, races, findings)
    if not findings:
        return
    for finding in findings:
        assert finding["kind"] == "unordered-access", finding
        # Since the reset, submissions are numbered from 1: one for each node.
        pair = sorted(operation["number"] - 1 for operation in finding["operations"])
        totals["pairs"] += 1
        assert tuple(pair) in races, (program, races, finding)


def main(count: int) -> None:
    device = Device()
    totals = {"programs": 0, "with a race": 0, "pairs": 0}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs)
    def agree(program: list[tuple[Any, ...]]) -> None:
        check(device, program, totals)

    agree()
    print(json.dumps(totals))


if __name__ == "__main__":
    main(int(sys.argv[1]))
