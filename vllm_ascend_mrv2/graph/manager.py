# SPDX-License-Identifier: Apache-2.0
"""Core's graph manager on ACL graphs: the model's forward at captured batch sizes.

Which sizes are captured and dispatched to is core's; how a graph is captured and replayed here is
capture.py's and replay.py's. The decode step as one graph is step_graphs.py's.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, ModelCudaGraphManager

from vllm_ascend_mrv2.attention.plan import HostSeqLens, padded_decode_lens
from vllm_ascend_mrv2.graph.replay import ReplayProtocol


class AscendGraphManager(ModelCudaGraphManager):
    """Replays through the protocol, with the lengths that the authority published."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.protocol: ReplayProtocol | None = None
        self.host_seq_lens: HostSeqLens | None = None

    def _capture_stream(self, desc: BatchExecutionDescriptor) -> torch.npu.Stream:
        # Core tracks its current stream by itself and would capture the default one.
        return torch.npu.current_stream(self.device)

    def run_fullgraph(self, desc: BatchExecutionDescriptor) -> Any:
        assert self.protocol is not None
        assert self.host_seq_lens is not None
        size = desc.num_reqs
        lens = padded_decode_lens(self.host_seq_lens.require(size).tolist(), size)
        captured, protocol = self.graphs[desc], self.protocol
        captured.arm(lambda: protocol.replay(captured, list(range(1, size + 1)), lens))
        return super().run_fullgraph(desc)
