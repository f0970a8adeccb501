# SPDX-License-Identifier: Apache-2.0
"""What ranks run, and what their tensors are made of. Nothing is asserted here."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.device.hccl.world import Rank

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


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


def barrier(rank: Rank) -> None:
    rank.group.barrier().wait()
