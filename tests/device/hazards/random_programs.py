# SPDX-License-Identifier: Apache-2.0
"""Random programs of streams, events, copies, frees and host waits, each under a scheduler of its
own, and what happens before what in them.

The reference is written for this test and shares nothing with the checker: it asks a closure over
explicit edges. Which of several racing pairs the checker names depends by design on the order in
which it came to look at them, as for ThreadSanitizer: on each byte it compares an access with the
last write, and with the last read of each stream since that. The reference applies that rule to
that order (`emu_check_looks`), and both must name the same pairs; that the rule loses no racing
byte is asserted against the list of all pairs.

`python -m tests.device.hazards.random_programs COUNT [SEED]` runs COUNT programs in this process,
whose checker must report; it needs no torch.
"""

from __future__ import annotations

import ctypes
import json
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

STREAMS, EVENTS, BUFFERS, PIECES = 3, 2, 2, 3
HOST = STREAMS  # beside the streams, who does something
MAPPED = BUFFERS - 1  # this one is mapped: what comes after a free has the same address
PIECE_BYTES = 4096
PAGE_BYTES = 2 << 20
D2D, D2H = 3, 2
LONGEST = 24

Byte = tuple[int, int, int]  # buffer, generation of its memory, piece
Found = tuple[str, tuple[int, ...]]  # kind of a finding, and the nodes that it names

acl = ctypes.CDLL("libascendcl.so")
acl.emu_check_json.restype = ctypes.c_size_t
acl.emu_check_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
acl.emu_check_looks.restype = ctypes.c_size_t


def _caller(line: int) -> Callable[..., int]:
    """Calls a function from a line of its own: the checker takes alike findings for one."""
    names: dict[str, Any] = {}
    text = "\n" * line + "def call(function, *arguments): return function(*arguments)"
    exec(compile(text, "program", "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


CALLERS = [_caller(line) for line in range(LONGEST)]


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


# All that a program can say, as lists: hypothesis is quick where it draws little.
Operation = tuple[Any, ...]
PLACES = [
    Place(buffer, first, count)
    for buffer, first, count in product(range(BUFFERS), range(PIECES), (1, 2))
    if first + count <= PIECES
]
COPIES = list(product(["copy"], range(STREAMS), PLACES, PLACES))
FILLS = list(product(["fill"], range(STREAMS), PLACES))
RECORDS = list(product(["record"], range(STREAMS), range(EVENTS)))
WAITS = list(product(["wait"], range(STREAMS), range(EVENTS)))
# One stream after the other, which is what orders most programs.
HANDED_OVER = [(record, wait) for record, wait in product(RECORDS, WAITS) if record[2] == wait[2]]


def _others(what: str, arguments: Iterable[Any]) -> st.SearchStrategy[Operation]:
    return st.sampled_from([(what, argument) for argument in arguments])


others = st.one_of(
    st.sampled_from(RECORDS),
    st.sampled_from(WAITS),
    _others("synchronize stream", range(STREAMS)),
    _others("synchronize event", range(EVENTS)),
    st.just(("synchronize device",)),
    _others("read on the host", PLACES),
    _others("free and allocate", range(BUFFERS)),
)
phrases = st.one_of(
    st.sampled_from(COPIES).map(lambda copy: (copy,)),
    st.sampled_from(FILLS).map(lambda fill: (fill,)),
    st.sampled_from(HANDED_OVER),
    others.map(lambda other: (other,)),
)
programs = st.lists(phrases, min_size=4, max_size=LONGEST).map(
    lambda spoken: [operation for phrase in spoken for operation in phrase][:LONGEST]
)
schedules = st.integers(0, 2**32 - 1)


class Reference:
    """Nodes in order of submission, each with the set of nodes that come before it."""

    def __init__(self) -> None:
        self.before: list[set[int]] = []
        self.agent: list[int] = []
        self.reads: list[set[Byte]] = []
        self.writes: list[set[Byte]] = []
        self.frees: dict[int, set[Byte]] = {}
        self.last_of: list[int | None] = [None] * STREAMS
        self.record_of: list[int | None] = [None] * EVENTS
        self.host: set[int] = set()  # what the host comes after
        self.generation = [0] * BUFFERS  # of a buffer's memory

    def node(self, agent: int, after: set[int]) -> int:
        closed = set(after)
        for other in after:
            closed |= self.before[other]
        self.before.append(closed)
        self.agent.append(agent)
        self.reads.append(set())
        self.writes.append(set())
        return len(self.before) - 1

    def bytes_of(self, place: Place) -> set[Byte]:
        return {(b, self.generation[b], p) for b, p in place.pieces()}

    def on_stream(self, stream: int, more: int | None = None) -> int:
        after = set(self.host)
        for other in (self.last_of[stream], more):
            if other is not None:
                after.add(other)
        self.last_of[stream] = made = self.node(stream, after)
        return made

    def host_knows(self, node: int | None) -> None:
        if node is not None:
            self.host |= {node} | self.before[node]

    def free(self, buffer: int) -> None:
        self.frees[self.node(HOST, set(self.host))] = self.bytes_of(Place(buffer, 0, PIECES))
        self.generation[buffer] += 1

    def found(self, looks: list[int]) -> set[Found]:
        """What a checker finds that comes to look at the nodes in this order."""
        self._assert_is_an_order(looks)
        found: set[Found] = set()
        raced: set[Byte] = set()
        gone: set[Byte] = set()
        last_write: dict[Byte, int] = {}
        last_reads: dict[Byte, dict[int, int]] = {}
        for node in looks:
            for byte in self.frees.get(node, ()):
                earlier = {last_write.pop(byte, None), *last_reads.pop(byte, {}).values()}
                late = earlier - self.before[node] - {None}
                found |= {("freed-in-use", (other, node)) for other in late if other is not None}
                gone.add(byte)
            if (self.reads[node] | self.writes[node]) & gone:
                found.add(("use-after-free", (node,)))
            for byte in self.reads[node] - gone:
                if pairs := self._races(node, {last_write.get(byte)}):
                    raced.add(byte)
                    found |= pairs
                last_reads.setdefault(byte, {})[self.agent[node]] = node
            for byte in self.writes[node] - gone:
                reads = last_reads.pop(byte, {})
                if pairs := self._races(node, {last_write.get(byte), *reads.values()}):
                    raced.add(byte)
                    found |= pairs
                last_write[byte] = node
        assert raced == self._all_raced(looks), "the rule loses a race"
        return found

    def looked_at(self) -> set[int]:
        """Nodes with accesses, and frees."""
        touching = {n for n in range(len(self.before)) if self.reads[n] or self.writes[n]}
        return touching | set(self.frees)

    def _races(self, node: int, earlier: set[int | None]) -> set[Found]:
        late = {other for other in earlier if other is not None} - self.before[node] - {node}
        return {("unordered-access", (min(other, node), max(other, node))) for other in late}

    def _assert_is_an_order(self, looks: list[int]) -> None:
        """Each node with accesses, once, after those that it comes after."""
        assert sorted(looks) == sorted(self.looked_at())
        place = {node: index for index, node in enumerate(looks)}
        for node, index in place.items():
            assert all(place.get(other, -1) < index for other in self.before[node])

    def _all_raced(self, looks: list[int]) -> set[Byte]:
        """Bytes that any two nodes race on which came to them before they were freed."""
        raced: set[Byte] = set()
        gone: set[Byte] = set()
        live: list[tuple[int, set[Byte], set[Byte]]] = []
        for node in looks:
            gone |= self.frees.get(node, set())
            reads, writes = self.reads[node] - gone, self.writes[node] - gone
            for other, other_reads, other_writes in live:
                if other not in self.before[node]:
                    raced |= other_writes & (reads | writes) | other_reads & writes
            live.append((node, reads, writes))
        return raced


PAGE = ctypes.c_size_t(PAGE_BYTES)


class PhysicalProperty(ctypes.Structure):
    """aclrtPhysicalMemProp."""

    _fields_ = (
        ("handle_type", ctypes.c_int),
        ("allocation_type", ctypes.c_int),
        ("attribute", ctypes.c_int),
        ("location_id", ctypes.c_uint32),
        ("location_type", ctypes.c_int),
        ("reserve", ctypes.c_uint64),
    )


class Device:
    """The real calls."""

    def __init__(self) -> None:
        self.ok(acl.aclrtSetDevice(0))
        self.streams = [self.made(acl.aclrtCreateStream) for _ in range(STREAMS)]
        self.buffers = [self.allocate() for _ in range(BUFFERS)]
        none = ctypes.c_uint64(0)
        self.buffers[MAPPED] = self.made(acl.aclrtReserveMemAddress, PAGE, none, None, none)
        self.map()
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

    def map(self) -> None:
        wanted = PhysicalProperty(location_type=1)  # of device 0
        none = ctypes.c_uint64(0)
        memory = self.made(acl.aclrtMallocPhysical, PAGE, ctypes.byref(wanted), none)
        self.ok(acl.aclrtMapMem(self.buffers[MAPPED], PAGE, none, memory, none))
        self.ok(acl.aclrtFreePhysical(memory))

    def wait_for_looks(self, count: int) -> None:
        """Until what is running on memory that goes away at once has run; nobody knows of it."""
        while acl.emu_check_looks(None, 0) < count:
            time.sleep(20e-6)

    def address(self, place: Place) -> ctypes.c_void_p:
        begin = self.buffers[place.buffer].value
        assert begin is not None
        return ctypes.c_void_p(begin + place.first * PIECE_BYTES)


def run(
    device: Device, schedule: int, program: list[Operation]
) -> tuple[Reference, list[int], list[dict[str, Any]]]:
    """Run it for real: what comes before what, in which order it was looked at, what was found."""
    device.ok(acl.aclrtSynchronizeDevice())
    acl.emu_check_reset()
    acl.emu_set_schedule_seed(ctypes.c_uint64(schedule), 1)
    handles = [device.made(acl.aclrtCreateEvent) for _ in range(EVENTS)]
    reference = Reference()
    for call, (what, *arguments) in zip(CALLERS, program, strict=False):
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
            on = device.streams[stream]
            device.ok(call(acl.aclrtMemcpyAsync, to, length, origin, length, D2D, on))
        elif what == "fill":
            stream, target = arguments
            node = reference.on_stream(stream)
            reference.writes[node] = reference.bytes_of(target)
            length = ctypes.c_size_t(target.bytes)
            to = device.address(target)
            device.ok(call(acl.aclrtMemsetAsync, to, length, 1, length, device.streams[stream]))
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
            node = reference.node(HOST, set(reference.host))
            reference.reads[node] = reference.bytes_of(source)
            reference.host_knows(node)
            length = ctypes.c_size_t(source.bytes)
            origin = device.address(source)
            device.ok(call(acl.aclrtMemcpy, device.host, length, origin, length, D2H))
        else:
            (buffer,) = arguments
            if buffer == MAPPED:
                device.wait_for_looks(len(reference.looked_at()))
                device.ok(call(acl.aclrtUnmapMem, device.buffers[buffer]))
                device.map()
            else:
                device.ok(call(acl.aclrtFree, device.buffers[buffer]))
                device.buffers[buffer] = device.allocate()
            reference.free(buffer)
    device.ok(acl.aclrtSynchronizeDevice())
    for handle in handles:
        device.ok(acl.aclrtDestroyEvent(handle))
    numbers = (ctypes.c_uint64 * LONGEST)()
    count = acl.emu_check_looks(numbers, LONGEST)
    size = acl.emu_check_json(None, 0) + 4096
    text = ctypes.create_string_buffer(size)
    acl.emu_check_json(text, size)
    # Since the reset, submissions are numbered from 1: one for each node.
    looks = [number - 1 for number in numbers[:count]]
    return reference, looks, json.loads(text.value)["findings"]


def check(device: Device, schedule: int, program: list[Operation], totals: dict[str, int]) -> None:
    """The checker and the reference name the same."""
    reference, looks, findings = run(device, schedule, program)
    expected = reference.found(looks)
    found = {
        (each["kind"], tuple(operation["number"] - 1 for operation in each["operations"]))
        for each in findings
    }
    assert found == expected, (program, looks, found - expected, expected - found)
    assert len(findings) == len(found)
    totals["programs"] += 1
    totals["without a finding"] += not found
    for kind, _ in found:
        totals[kind] = totals.get(kind, 0) + 1


def main(count: int, number: int) -> None:
    device = Device()
    totals = {"programs": 0, "without a finding": 0}

    @seed(number)
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(schedules, programs)
    def agree(schedule: int, program: list[Operation]) -> None:
        check(device, schedule, program, totals)

    try:
        agree()
    except Exception:
        print(traceback.format_exc())  # stderr is full of findings
        sys.exit(f"seed {number}")
    print(json.dumps(totals | {"seed": number}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32))
