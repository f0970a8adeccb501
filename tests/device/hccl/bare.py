# SPDX-License-Identifier: Apache-2.0
"""Ranks on the C ABI alone, each a process that starts in an instant: for what goes wrong.

`python -m tests.device.hccl.bare RANK RANKS FOLDER SCENARIO` runs a function of this module and
prints what it returns as JSON. Ranks hand root infos to each other through FOLDER.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

INT32, FLOAT32, INT8 = 2, 4, 0
SUM, MAX = 0, 2
ROOT_INFO_BYTES = 4108

acl = ctypes.CDLL("libascendcl.so")
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
hccl = ctypes.CDLL("libhccl.so")


class Rank:
    """A device, a stream, a buffer, and as many communicators as are asked for."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        self.rank, self.ranks, self._folder = rank, ranks, folder
        self._made = 0
        self.stream, self.buffer = ctypes.c_void_p(), ctypes.c_void_p()
        assert acl.aclrtSetDevice(rank) == 0
        assert acl.aclrtCreateStream(ctypes.byref(self.stream)) == 0
        assert acl.aclrtMalloc(ctypes.byref(self.buffer), ctypes.c_size_t(1 << 20), 0) == 0

    def root_info(self) -> ctypes.Array[ctypes.c_char]:
        """Of the next communicator, from rank 0."""
        path = self._folder / f"root{self._made}"
        self._made += 1
        root = ctypes.create_string_buffer(ROOT_INFO_BYTES)
        if self.rank == 0:
            assert hccl.HcclGetRootInfo(root) == 0
            path.with_suffix(".part").write_bytes(root.raw)
            path.with_suffix(".part").rename(path)
        while not path.exists():
            time.sleep(0.005)
        root.raw = path.read_bytes()
        return root

    def communicator(self, rank: int | None = None, ranks: int | None = None) -> ctypes.c_void_p:
        comm = ctypes.c_void_p()
        code = hccl.HcclCommInitRootInfo(
            self.ranks if ranks is None else ranks,
            self.root_info(),
            self.rank if rank is None else rank,
            ctypes.byref(comm),
        )
        assert code == 0, f"{code}: {message()}"
        return comm

    def all_reduce(
        self, comm: ctypes.c_void_p, count: int = 4, dtype: int = INT32, op: int = SUM
    ) -> int:
        return int(
            hccl.HcclAllReduce(
                self.buffer, self.buffer, ctypes.c_uint64(count), dtype, op, comm, self.stream
            )
        )

    def synchronize(self) -> tuple[int, str]:
        """The code and the message; the device is mended."""
        code = acl.aclrtSynchronizeStream(self.stream)
        said = message()
        acl.aclrtResetDevice(self.rank)
        assert acl.aclrtSetDevice(self.rank) == 0
        return code, said


def message() -> str:
    said = acl.aclGetRecentErrMsg()
    return said.decode() if said else ""


def async_error(comm: ctypes.c_void_p) -> tuple[int, str]:
    error = ctypes.c_int()
    assert hccl.HcclGetCommAsyncError(comm, ctypes.byref(error)) == 0
    return error.value, message()


def killed(rank: Rank) -> Any:
    """Rank 1 is killed while rank 0 waits for it."""
    comm = rank.communicator()
    assert rank.all_reduce(comm) == 0
    assert rank.synchronize() == (0, "")
    if rank.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    assert rank.all_reduce(comm) == 0
    code, said = rank.synchronize()
    return {
        "process": os.getpid(),
        "code": code,
        "message": said,
        "async": async_error(comm),
        "seconds": time.monotonic() - begin,
    }


def slow(rank: Rank) -> Any:
    """Rank 1 comes late; what the wait costs rank 0."""
    comm = rank.communicator()
    if rank.rank == 1:
        time.sleep(1.5)
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert rank.all_reduce(comm) == 0
    result = rank.synchronize()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"result": result, "cpu_seconds": cpu}


def late(rank: Rank) -> Any:
    """Rank 1 comes after rank 0 has given up."""
    comm = rank.communicator()
    if rank.rank == 1:
        time.sleep(2)
    assert rank.all_reduce(comm) == 0
    return rank.synchronize()


Call = Callable[[Rank, ctypes.c_void_p], int]


def _send(rank: Rank, comm: ctypes.c_void_p, count: int, dtype: int) -> int:
    call = hccl.HcclSend if rank.rank == 0 else hccl.HcclRecv
    return int(call(rank.buffer, ctypes.c_uint64(count), dtype, 1 - rank.rank, comm, rank.stream))


def _broadcast(rank: Rank, comm: ctypes.c_void_p, root: int) -> int:
    count = ctypes.c_uint64(4)
    return int(hccl.HcclBroadcast(rank.buffer, count, INT32, root, comm, rank.stream))


# What rank 0 and rank 1 ask for.
MISMATCHES: dict[str, tuple[Call, Call]] = {
    "operation": (lambda r, c: r.all_reduce(c), lambda r, c: _broadcast(r, c, 0)),
    "count": (lambda r, c: r.all_reduce(c, count=4), lambda r, c: r.all_reduce(c, count=5)),
    "dataType": (lambda r, c: r.all_reduce(c), lambda r, c: r.all_reduce(c, dtype=FLOAT32)),
    "reduce op": (lambda r, c: r.all_reduce(c), lambda r, c: r.all_reduce(c, op=MAX)),
    "root": (lambda r, c: _broadcast(r, c, 0), lambda r, c: _broadcast(r, c, 1)),
    "count of a message": (lambda r, c: _send(r, c, 4, INT32), lambda r, c: _send(r, c, 5, INT32)),
    "dataType of a message": (
        lambda r, c: _send(r, c, 4, INT32),
        lambda r, c: _send(r, c, 4, FLOAT32),
    ),
}


def mismatches(rank: Rank) -> Any:
    seen = {}
    for name, calls in MISMATCHES.items():
        comm = rank.communicator()
        assert calls[rank.rank](rank, comm) == 0
        seen[name] = [*rank.synchronize(), async_error(comm)[0]]
        assert hccl.HcclCommDestroy(comm) == 0
    return seen


def refused(rank: Rank) -> Any:
    """What is wrong on one rank alone is said at the call; the others never hear of it."""
    comm, seen = rank.communicator(), {}
    seen["reduce uint8"] = [rank.all_reduce(comm, dtype=7), message()]
    seen["unknown type"] = [rank.all_reduce(comm, dtype=99), message()]
    seen["root"] = [_broadcast(rank, comm, 2), message()]
    seen["no communicator"] = [rank.all_reduce(ctypes.c_void_p()), message()]
    assert rank.all_reduce(comm) == 0
    assert rank.synchronize() == (0, "")
    return seen


def incomplete(rank: Rank) -> Any:
    """Ranks that say that there are more of them than come."""
    comm = ctypes.c_void_p()
    code = hccl.HcclCommInitRootInfo(3, rank.root_info(), rank.rank, ctypes.byref(comm))
    return [code, message()]


def contradiction(rank: Rank) -> Any:
    """Both say that they are rank 0; then, that there are two ranks and three."""
    seen = []
    for here, ranks in ((0, 2), (rank.rank, 2 + rank.rank)):
        comm = ctypes.c_void_p()
        code = hccl.HcclCommInitRootInfo(ranks, rank.root_info(), here, ctypes.byref(comm))
        seen.append([code, message()])
    return seen


def main(rank: int, ranks: int, folder: Path, scenario: str) -> None:
    result = globals()[scenario](Rank(rank, ranks, folder))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
