# SPDX-License-Identifier: Apache-2.0
"""Core's graph manager of a drafter on ACL graphs; see manager.py."""

from __future__ import annotations

from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
    SpeculatorCudaGraphManager,
)

from vllm_ascend_mrv2.graph.manager import ArmedReplays


class DraftGraphManager(ArmedReplays, SpeculatorCudaGraphManager):
    """A drafter's first forward, or one of those after it."""
