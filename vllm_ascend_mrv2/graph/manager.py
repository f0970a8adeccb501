# SPDX-License-Identifier: Apache-2.0
"""Core's graph manager on ACL graphs: the model's forward at captured batch sizes.

Which sizes are captured and dispatched to is core's; how a graph is captured and replayed here is
capture.py's and replay.py's. The decode step as one graph is step_graphs.py's.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.cudagraph_utils import (
    BatchExecutionDescriptor,
    CudaGraphManager,
    ModelCudaGraphManager,
)

from vllm_ascend_mrv2.attention.plan import HostSeqLens, padded_decode_lens, uniform_query_ends
from vllm_ascend_mrv2.graph.replay import ReplayProtocol


class ArmedReplays(CudaGraphManager):
    """Replays through the protocol, with the lengths that the authority published.

    One protocol for all managers of a worker: graphs of model and drafter are updated in the order
    of their replays.
    """

    protocol: ReplayProtocol | None = None
    host_seq_lens: HostSeqLens | None = None

    def _capture_stream(self, desc: BatchExecutionDescriptor) -> torch.npu.Stream:
        # Core tracks its current stream by itself and would capture the default one.
        return torch.npu.current_stream(self.device)

    def run_fullgraph(self, desc: BatchExecutionDescriptor) -> Any:
        assert self.protocol is not None
        assert self.host_seq_lens is not None
        assert desc.num_reqs is not None
        size, query_len = desc.num_reqs, desc.num_tokens // desc.num_reqs
        lens = padded_decode_lens(self.host_seq_lens.require_up_to(size).tolist(), size, query_len)
        captured, protocol = self.graphs[desc], self.protocol
        ends = uniform_query_ends(size, query_len, captured.tasks.have_mask)
        captured.arm(lambda: protocol.replay(captured, ends, lens))
        return super().run_fullgraph(desc)


class AscendGraphManager(ArmedReplays, ModelCudaGraphManager):
    """The model's forward."""
