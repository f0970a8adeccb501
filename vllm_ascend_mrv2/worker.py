# SPDX-License-Identifier: Apache-2.0
"""NPUWorker: brings a device up and gives core's worker the Ascend runner.

Device bring-up only; what happens in a step belongs to runner/.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from vllm.platforms import current_platform
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

from vllm_ascend_mrv2 import engine_folder
from vllm_ascend_mrv2.compat import (
    adapter_weights,
    bert_token_types,
    kernel_registry,
    kernel_warmup,
    pooling_cursor,
    ray_segments,
    worker_startup,
)
from vllm_ascend_mrv2.distributed.communicator import require_hccl
from vllm_ascend_mrv2.last_words import SAID
from vllm_ascend_mrv2.runner.garbage import freeze_what_is_loaded
from vllm_ascend_mrv2.runner.model_runner import AscendModelRunner, forget_runner

# Of the peak of a step, what is kept free beside it: free memory is in pieces, and no step's are
# those of the profile.
FRAGMENTATION_PART = 4


class NPUWorker(Worker):
    """One process per NPU. Core's worker, but for the CUDA assumptions of its bring-up."""

    device: torch.device
    local_rank: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not kernel_registry.core_has_one():
            current_platform.register_triton_kernel_overrides()
        super().__init__(*args, **kwargs)
        if self.parallel_config.use_ray:
            ray_segments.install()

    def init_device(self) -> None:
        """Claim the device, join the distributed world and take the memory baseline.

        Raises RuntimeError where local_rank names no visible NPU, HcclMissingError without HCCL.
        """
        self._claim_device()
        if (place := urlsplit(self.distributed_init_method)).scheme == "file":
            engine_folder.goes_too(Path(place.path))
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        require_hccl()
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        # What an earlier engine of this process still holds must not come back while the memory
        # of this one is measured.
        forget_runner()
        freeze_what_is_loaded()
        torch.npu.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = worker_startup.requested_memory(self)
        worker_startup.make_runner(self)

    def _claim_device(self) -> None:
        """Set the NPU of this rank; `local_rank` becomes its number among the visible ones.

        Core names its groups' devices by `local_rank`, so the two must be the same. A
        data-parallel engine is given its devices by core; where it is not, engines of a machine
        take them one after the other.
        """
        parallel = self.parallel_config
        count = torch.npu.device_count()
        assigned = parallel.assigned_physical_gpu_ids
        if assigned is not None:
            visible = [
                current_platform.visible_device_id_to_physical_device_id(index)
                for index in range(count)
            ]
            if parallel.use_ray and len(assigned) < parallel.world_size:
                raise RuntimeError(
                    f"Ray placed {len(assigned)} of {parallel.world_size} ranks on this machine; "
                    "only ranks of one machine have been tried. Use a Ray cluster of one machine, "
                    f"with {parallel.world_size} free NPUs, or the default executor."
                )
            wanted = assigned[self.local_rank]
            if wanted not in visible:
                raise RuntimeError(f"worker {self.rank} needs NPU {wanted}; visible are {visible}.")
            self.local_rank = visible.index(wanted)
        else:
            engine = parallel.data_parallel_rank_local
            if engine is None:
                engine = parallel.data_parallel_index
            self.local_rank += engine * parallel.world_size
        if self.local_rank >= count:
            raise RuntimeError(
                f"worker {self.rank} needs NPU {self.local_rank}, but {count} are visible. Make "
                f"more visible with {current_platform.device_control_env_var}, or ask for fewer."
            )
        self.device = torch.device(f"npu:{self.local_rank}")
        torch.npu.set_device(self.device)

    def _make_model_runner(self) -> AscendModelRunner:
        if self.model_config.runner_type == "pooling":
            bert_token_types.install()
            pooling_cursor.install()
        if self.vllm_config.lora_config is not None:
            adapter_weights.install()
        return AscendModelRunner(self.vllm_config, self.device)

    def determine_available_memory(self) -> int:
        available = super().determine_available_memory()
        # No peak where the user gave the size of the KV cache: nothing was measured.
        peak = int(getattr(self, "peak_activation_memory", 0))
        room = peak // FRAGMENTATION_PART
        self.model_runner.peak_activation_bytes = peak + room
        return available - room

    def compile_or_warm_up_model(self) -> CompilationTimes:
        with kernel_warmup.skipped():
            return super().compile_or_warm_up_model()

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        with SAID:
            return super().execute_model(*args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        with SAID:
            return super().sample_tokens(*args, **kwargs)

    def execute_dummy_batch(self) -> None:
        if not self.model_runner.run_idle():
            super().execute_dummy_batch()

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        # Core's pools serve sleep mode, which this platform refuses at start-up.
        return nullcontext()
