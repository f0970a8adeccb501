# SPDX-License-Identifier: Apache-2.0
"""What ranks run, and what their tensors are made of. Nothing is asserted here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from tests.device.hccl.world import Rank

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


@contextlib.contextmanager
def capture(graph: torch.npu.NPUGraph) -> Iterator[None]:
    """As `torch.npu.graph`, for ranks that are threads.

    That one empties the cache first, which waits for every device of the process and holds the
    interpreter meanwhile: a collective that another thread has yet to submit would never end.
    """
    torch.npu.synchronize()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's tensor, on the CPU: the same wherever it is made."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(-5, 6, (count,), generator=generator).to(dtype)


def all_reduce(rank: Rank, op: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    tensor = rank.on_device(values(rank.rank, count, dtype))
    options = dist.AllreduceOptions()
    options.reduceOp = OPERATIONS[op]
    rank.group.allreduce([tensor], options).wait()
    return tensor.cpu()


def all_gather(rank: Rank, dtype: torch.dtype, count: int) -> torch.Tensor:
    whole = torch.empty(rank.ranks * count, dtype=dtype, device=rank.device)
    rank.group._allgather_base(whole, rank.on_device(values(rank.rank, count, dtype))).wait()
    return whole.cpu()


def broadcast(rank: Rank, root: int, count: int) -> torch.Tensor:
    tensor = rank.on_device(values(rank.rank, count, torch.float32))
    options = dist.BroadcastOptions()
    options.rootRank = root
    rank.group.broadcast([tensor], options).wait()
    return tensor.cpu()


def reduce(rank: Rank, op: str, dtype: torch.dtype, count: int, root: int) -> torch.Tensor:
    tensor = rank.on_device(values(rank.rank, count, dtype))
    options = dist.ReduceOptions()
    options.reduceOp, options.rootRank = OPERATIONS[op], root
    rank.group.reduce([tensor], options).wait()
    return tensor.cpu()


def reduce_scatter(rank: Rank, op: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    whole = rank.on_device(values(rank.rank, count * rank.ranks, dtype))
    part = torch.empty(count, dtype=dtype, device=rank.device)
    options = dist.ReduceScatterOptions()
    options.reduceOp = OPERATIONS[op]
    rank.group._reduce_scatter_base(part, whole, options).wait()
    return part.cpu()


def scatter(rank: Rank, root: int, count: int) -> torch.Tensor:
    part = torch.empty(count, device=rank.device)
    options = dist.ScatterOptions()
    options.rootRank = root
    parts = list(rank.on_device(values(root, count * rank.ranks, torch.float32)).chunk(rank.ranks))
    rank.group.scatter([part], [parts] if rank.rank == root else [], options).wait()
    return part.cpu()


def splits(sender: int, ranks: int, count: int) -> list[int]:
    """How many elements a rank sends to each: none to some."""
    return [count * ((sender + receiver) % ranks) for receiver in range(ranks)]


def all_to_all(rank: Rank, count: int) -> torch.Tensor:
    """Equal parts."""
    sent = rank.on_device(values(rank.rank, count * rank.ranks, torch.float32))
    received = torch.empty_like(sent)
    rank.group.alltoall_base(received, sent, [], [], dist.AllToAllOptions()).wait()
    return received.cpu()


def all_to_all_of_splits(rank: Rank, count: int) -> torch.Tensor:
    sends = splits(rank.rank, rank.ranks, count)
    receives = [splits(sender, rank.ranks, count)[rank.rank] for sender in range(rank.ranks)]
    sent = rank.on_device(values(rank.rank, sum(sends), torch.float32))
    received = torch.empty(sum(receives), device=rank.device)
    rank.group.alltoall_base(received, sent, receives, sends, dist.AllToAllOptions()).wait()
    return received.cpu()


def all_gather_of_unequal(rank: Rank, counts: list[int]) -> list[torch.Tensor]:
    parts = [torch.empty(count, device=rank.device) for count in counts]
    sent = rank.on_device(values(rank.rank, counts[rank.rank], torch.float32))
    rank.group.allgather([parts], [sent]).wait()
    return [part.cpu() for part in parts]


def ring(rank: Rank, count: int) -> torch.Tensor:
    """Each sends to the next, rank by rank: the last receives first."""
    received = torch.empty(count, device=rank.device)
    sent = rank.on_device(values(rank.rank, count, torch.float32))
    after, before = (rank.rank + 1) % rank.ranks, (rank.rank - 1) % rank.ranks
    if rank.rank == rank.ranks - 1:
        rank.group.recv([received], before, 0).wait()
        rank.group.send([sent], after, 0).wait()
    else:
        rank.group.send([sent], after, 0).wait()
        rank.group.recv([received], before, 0).wait()
    return received.cpu()


def batch(rank: Rank, count: int) -> list[torch.Tensor]:
    """Everybody sends to everybody, itself too, in one batch: two messages each, in order."""
    others = range(rank.ranks)
    sent = [rank.on_device(values(rank.rank, count, torch.float32) * k) for k in (1, 2)]
    received = [torch.empty(count, device=rank.device) for _ in range(2 * rank.ranks)]
    operations, tensors, peers = [], [], []
    for k in range(2):
        for other in others:
            operations += ["isend", "irecv"]
            tensors += [sent[k], received[k * rank.ranks + other]]
            peers += [other, other]
    rank.group.batch_isend_irecv(operations, tensors, peers).wait()
    return [tensor.cpu() for tensor in received]


def barrier(rank: Rank) -> None:
    rank.group.barrier().wait()


def replays(rank: Rank, steps: int) -> list[torch.Tensor]:
    """A graph with two collectives, replayed with other inputs each time."""
    inputs = torch.zeros(64, device=rank.device)
    whole = torch.empty(64 * rank.ranks, device=rank.device)
    rank.group.allreduce([inputs]).wait()  # the communicator is made here
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with capture(graph):
        summed = inputs * 2
        rank.group.allreduce([summed]).wait()
        rank.group._allgather_base(whole, summed + rank.rank).wait()
        result = whole + 1
    seen = []
    for step in range(steps):
        inputs.copy_(values(rank.rank + 10 * step, 64, torch.float32))
        graph.replay()
        seen.append(result.cpu())
        rank.group.allreduce([inputs]).wait()  # between replays, on the same communicator
    return seen


def distributed(rank: Rank) -> dict[str, torch.Tensor]:
    """The public API, with the communicators that it makes: of all, of some, of two."""
    store = dist.PrefixStore("distributed", rank.store)
    dist.init_process_group("hccl", store=store, rank=rank.rank, world_size=rank.ranks)
    seen = {}
    everybody = torch.full((4,), rank.rank + 1.0, device=rank.device)
    dist.all_reduce(everybody)
    seen["all"] = everybody.cpu()
    pair = dist.new_group([0, 1], use_local_synchronization=True)
    if rank.rank < 2:
        both = torch.full((4,), rank.rank + 1.0, device=rank.device)
        dist.all_reduce(both, dist.ReduceOp.AVG, group=pair)
        seen["pair"] = both.cpu()
    objects: list[object] = [None] * rank.ranks
    dist.all_gather_object(objects, {"rank": rank.rank})
    seen["objects"] = torch.tensor([entry["rank"] for entry in objects])  # type: ignore[index]
    after, before = (rank.rank + 1) % rank.ranks, (rank.rank - 1) % rank.ranks
    received = torch.empty(4, device=rank.device)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, everybody + rank.rank, after),
            dist.P2POp(dist.irecv, received, before),
        ]
    )
    for request in requests:
        request.wait()
    seen["ring"] = received.cpu()
    wholes = [torch.empty(rank.ranks * count, device=rank.device) for count in (3, 8)]
    with dist._coalescing_manager(device=rank.device):
        for whole in wholes:
            part = values(rank.rank, len(whole) // rank.ranks, torch.float32)
            dist.all_gather_into_tensor(whole, rank.on_device(part))
    seen["coalesced"] = torch.cat([whole.cpu() for whole in wholes])
    dist.barrier()
    dist.destroy_process_group()
    return seen
