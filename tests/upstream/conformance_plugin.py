# SPDX-License-Identifier: Apache-2.0
"""pytest plugin for core's own test files: the state of a worker process.

Loaded by name (`-p conformance_plugin`) into a run whose `tests` package is core's, so nothing here
imports this repository's tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """What a worker does before it builds its runner, and before core's modules are loaded."""
    import torch
    from vllm.platforms import current_platform

    if current_platform.device_type != "npu":
        pytest.exit(f"the platform is {current_platform!r}; the plugin is not active", 4)
    torch.npu.set_device(0)
    current_platform.import_kernels()
    current_platform.import_ir_kernels()
    current_platform.register_triton_kernel_overrides()
    _complete_batches()


def _complete_batches() -> None:
    """Give a test's stand-in for a batch the host arrays that every real one has.

    Core's overlay of prompt embeddings finds its rows on the device; ours on the host, without a
    read. What a stand-in lacks is read from its own device tensors here.
    """
    from vllm.v1.worker.gpu.model_states.prompt_embeds import PromptEmbedsState

    apply, add_request = PromptEmbedsState.apply, PromptEmbedsState.add_request

    def noting(state: Any, req_index: int, data: Any) -> None:
        vars(state).setdefault("req_ids", {})[req_index] = data.req_id
        add_request(state, req_index, data)

    def completing(state: Any, batch: Any, computed: Any, inputs_embeds: Any) -> None:
        if not hasattr(batch, "req_ids"):
            rows = batch.idx_mapping.cpu()
            batch.idx_mapping_np = rows.numpy()
            batch.query_start_loc_np = batch.query_start_loc.cpu().numpy()
            batch.num_computed_prefill_tokens_np = computed.cpu()[rows].numpy()
            batch.req_ids = [state.req_ids.get(row) for row in rows.tolist()]
        apply(state, batch, computed, inputs_embeds)

    PromptEmbedsState.add_request, PromptEmbedsState.apply = noting, completing


@pytest.fixture(autouse=True)
def device_settles() -> Iterator[None]:
    """Fail the test whose operators failed on the device, and mend it for those that follow.

    Operators run later than their call: without this the failure would show in another test.
    """
    yield
    import torch

    try:
        torch.npu.synchronize()
    except RuntimeError as error:
        ctypes.CDLL("libascendcl.so").aclrtResetDevice(0)
        torch.npu.set_device(0)
        pytest.fail(f"the device failed during this test: {error}")
