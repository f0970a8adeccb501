# SPDX-License-Identifier: Apache-2.0
"""Core's device communicator on HCCL.

Every collective runs on torch_npu's HCCL process group, which orders it with the caller's stream
and can be captured. Where ranks give different numbers of rows, rows are padded to the largest
number: no collective with counts by rank is asked of HCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

BACKEND = "hccl"
# The one way of core to exchange tokens between data-parallel ranks that needs collectives only.
ALL2ALL_BACKEND = "allgather_reducescatter"


class HcclMissingError(RuntimeError):
    """Several devices were asked for and torch cannot talk between them."""


def require_hccl() -> None:
    """Raises HcclMissingError where torch has no HCCL backend; core would take gloo instead."""
    if not dist.is_backend_available(BACKEND):
        raise HcclMissingError(
            "torch.distributed has no hccl backend, and without it devices cannot exchange data. "
            "Install the torch-npu of your torch, load CANN's set_env.sh, and run "
            "`vllm-ascend-mrv2 doctor`."
        )


class NPUCommunicator(DeviceCommunicatorBase):
    """Of one group of ranks. Raises HcclMissingError for a group on another backend."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        backend = dist.get_backend(self.device_group)
        if backend != BACKEND:
            raise HcclMissingError(
                f"the group {self.unique_name} talks over {backend}, not {BACKEND}; this is a "
                "fault of the start-up, please report it."
            )
        if self.use_all2all:
            if self.all2all_backend != ALL2ALL_BACKEND:
                raise ValueError(
                    f"all2all backend {self.all2all_backend} does not run on this device; leave "
                    f"--all2all-backend unset, or set it to {ALL2ALL_BACKEND}."
                )
            from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager

            self.all2all_manager = AgRsAll2AllManager(self.cpu_group)

    # -- different numbers of rows ------------------------------------------------------------

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """Every rank's rows, one rank after the other. sizes: rows of each rank; None: all alike.

        Raises NotImplementedError for another dimension than the first.
        """
        if dim != 0:
            raise NotImplementedError("only rows (dim 0) of different counts can be gathered")
        if isinstance(input_, list):
            return [self._gather_rows(tensor, sizes) for tensor in input_]
        return self._gather_rows(input_, sizes)

    def _gather_rows(self, rows: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
        if _all_alike(sizes):
            return self.all_gather(rows.contiguous(), 0)
        assert sizes is not None
        most = max(sizes)
        padded = rows.new_empty((most, *rows.shape[1:]))
        padded[: rows.shape[0]].copy_(rows)
        gathered = self.all_gather(padded, 0)
        parts = [gathered[rank * most :][:size] for rank, size in enumerate(sizes)]
        return torch.cat(parts)

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """The sum over ranks of this rank's rows of `input_`, where rank r has sizes[r] of them.

        Raises NotImplementedError for rows of different counts in another dimension than the first.
        """
        if _all_alike(sizes):
            return self.reduce_scatter(input_, dim)
        assert sizes is not None
        if dim % input_.dim() != 0:
            raise NotImplementedError("only rows (dim 0) of different counts can be scattered")
        most = max(sizes)
        padded = input_.new_zeros((len(sizes), most, *input_.shape[1:]))
        for rank, part in enumerate(input_.split(sizes)):
            padded[rank, : part.shape[0]].copy_(part)
        return self.reduce_scatter(padded.flatten(0, 1), 0)[: sizes[self.rank_in_group]]

    # -- experts on several ranks -------------------------------------------------------------

    def dispatch_router_logits(self, *args: Any, **kwargs: Any) -> Any:
        return self._all2all().dispatch_router_logits(*args, **kwargs)

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        return self._all2all().dispatch(*args, **kwargs)

    def combine(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._all2all().combine(*args, **kwargs)

    def _all2all(self) -> Any:
        assert self.all2all_manager is not None, "tokens are exchanged in the expert group only"
        return self.all2all_manager


def _all_alike(sizes: Sequence[int] | None) -> bool:
    return sizes is None or len(set(sizes)) == 1
