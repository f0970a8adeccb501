# SPDX-License-Identifier: Apache-2.0
"""Core's speculators with host lengths for their own attention.

A draft model attends over the same sequences as the target, without what was rejected and with what
it has drafted itself. Core gives its attention an upper bound of those lengths; FIA needs them
exact. What is drafted, and how, is core's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode import init_speculator as core_init_speculator
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (
    TargetDependentARSpeculator,
)

from vllm_ascend_mrv2.attention.plan import HostSeqLens
from vllm_ascend_mrv2.graph.draft_manager import DraftGraphManager
from vllm_ascend_mrv2.graph.replay import ReplayProtocol
from vllm_ascend_mrv2.runner.read_back import ComputedReadBack


class HostLengths(DraftModelSpeculator):
    """Mixed into a core speculator that has a draft model."""

    host_seq_lens: HostSeqLens
    read_back: ComputedReadBack
    hides_unverified: bool  # its drafts attend by a mask, so that upper bounds will do
    _batch: InputBatch | None  # whose drafts are made; None for a dummy batch

    def set_attn(self, *args: Any, **kwargs: Any) -> None:
        super().set_attn(*args, **kwargs)
        self.host_seq_lens = HostSeqLens()
        for groups in self.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    builder.host_seq_lens = self.host_seq_lens
                    builder.masked_query_len = 1 if self.hides_unverified else None

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        super().init_cudagraph_manager(cudagraph_mode)
        if isinstance(self, TargetDependentARSpeculator):
            self.prefill_cudagraph_manager = _as(DraftGraphManager, self.prefill_cudagraph_manager)
            self.decode_cudagraph_manager = _as(DraftGraphManager, self.decode_cudagraph_manager)

    def use_graphs(self, protocol: ReplayProtocol, target_seq_lens: HostSeqLens) -> None:
        """Replay by `protocol`. target_seq_lens: the target's, which the first draft attends over.

        To be called once the graph managers are there.
        """
        if not isinstance(self, TargetDependentARSpeculator):
            return
        for manager, lens in (
            (self.prefill_cudagraph_manager, target_seq_lens),
            (self.decode_cudagraph_manager, self.host_seq_lens),
        ):
            manager.protocol, manager.host_seq_lens = protocol, lens

    def propose(
        self, input_batch: InputBatch, *args: Any, dummy_run: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        self._batch = None if dummy_run else input_batch
        try:
            return super().propose(input_batch, *args, dummy_run=dummy_run, **kwargs)
        finally:
            self._batch = None

    def _build_attn_metadata(
        self,
        num_reqs: int,
        batch_desc: BatchExecutionDescriptor,
        query_start_loc_np: npt.NDArray[np.int32],
        seq_lens_cpu_upper_bound: torch.Tensor,
        step: int,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        lens = np.zeros(batch_desc.num_reqs or num_reqs, dtype=np.int32)
        lens[:num_reqs] = self._lengths(seq_lens_cpu_upper_bound.numpy()[:num_reqs], step)
        self.host_seq_lens.publish(lens)
        return super()._build_attn_metadata(
            num_reqs=num_reqs,
            batch_desc=batch_desc,
            query_start_loc_np=query_start_loc_np,
            seq_lens_cpu_upper_bound=torch.from_numpy(lens) - step,
            step=step,
            **kwargs,
        )

    def _lengths(self, target_lens: npt.NDArray[np.int32], step: int) -> npt.NDArray[np.int32]:
        """Lengths of a draft forward, [num_reqs] int32: what the drafter's seq_lens has.

        target_lens: the target's exact lengths of this step, rejected drafts included. step: what
        core adds to the accepted length, 0 for a forward over the target's own tokens. Where a mask
        hides the rest, both are upper bounds.
        """
        batch, longest = self._batch, self.max_model_len
        if batch is None or self.hides_unverified:
            return np.minimum(target_lens + step, longest)
        if step == 0 and isinstance(self, StandaloneARSpeculator):
            return np.minimum(target_lens + 1, longest)
        if step == 0:
            raise NotImplementedError(
                f"{type(self).__name__} builds attention of its own for the target's tokens, whose "
                "lengths are not known here. This is a fault of the plugin; please report it."
            )
        return np.minimum(self.read_back.computed(batch.idx_mapping_np) + step, longest)


def _as(kind: Any, made: Any) -> Any:
    """What core has constructed, as an object of its subclass `kind`: core has no hook for that."""
    ours = kind.__new__(kind)
    ours.__dict__ = made.__dict__
    return ours


def _with_host_lengths(speculator: Any) -> Any:
    return type(f"Ascend{speculator.__name__}", (HostLengths, speculator), {})


def init_speculator(*args: Any, **kwargs: Any) -> Any:
    """Core's `init_speculator`; what it makes is one of ours where it has a draft model."""
    made = core_init_speculator(*args, **kwargs)
    if isinstance(made, DraftModelSpeculator):
        return _as(_with_host_lengths(type(made)), made)
    return made
