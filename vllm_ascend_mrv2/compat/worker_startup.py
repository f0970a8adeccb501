# SPDX-License-Identifier: Apache-2.0
"""The end of a worker's bring-up: its memory budget, its workspace and its model runner.

Reason, core versions and when this goes: `differences.WORKER_STARTUP`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ascend_mrv2.compat.differences import WORKER_STARTUP

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker


def requested_memory(worker: Worker) -> int:
    """Bytes of the device that the engine may take, by core's rule. Raises ValueError."""
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.v1.worker.utils import request_memory

    loader = get_model_loader(worker.load_config)
    if not hasattr(loader, "get_external_weight_memory"):
        return _requested_before(worker)
    external_weights_bytes = loader.get_external_weight_memory(worker.vllm_config)
    return request_memory(worker.init_snapshot, worker.cache_config, external_weights_bytes)


@WORKER_STARTUP.serves
def _requested_before(worker: Worker) -> int:
    from vllm.v1.worker.utils import request_memory

    return request_memory(worker.init_snapshot, worker.cache_config)


def make_runner(worker: Worker) -> None:
    """Give the worker its workspace and the runner that its `_make_model_runner` makes."""
    from vllm.v1.worker.gpu_worker import Worker

    if hasattr(Worker, "_init_workspace_and_model_runner"):
        worker._init_workspace_and_model_runner()
    else:
        _make_runner_before(worker)


@WORKER_STARTUP.serves
def _make_runner_before(worker: Worker) -> None:
    from vllm.v1.worker import gpu_worker

    config = worker.vllm_config
    lanes = gpu_worker._num_workspace_lanes(config, worker.use_v2_model_runner)
    # One micro-batch: dual batch overlap is refused at start-up.
    gpu_worker.init_workspace_manager(worker.device, 1, lanes)
    worker.model_runner = worker._make_model_runner()
    if worker.rank == 0:
        gpu_worker.report_usage_stats(config)
