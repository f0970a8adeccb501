# SPDX-License-Identifier: Apache-2.0
"""NPUPlatform: every answer that vLLM asks a platform for.

An answer that needs more than a line of thought is made elsewhere (support.py refuses,
decisions.py records, kernels/ and layers/ replace) and only given here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch_npu  # noqa: F401  (torch.device("npu") must exist in every process)
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

import vllm_ascend_mrv2
from vllm_ascend_mrv2 import engine_folder, envs, last_words
from vllm_ascend_mrv2.compat import (
    bad_words_limit,
    device_argument,
    engine_death,
    environ_check,
    model_path,
    pins,
    triton_gate,
    unknown_parameters,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from vllm.config import VllmConfig
    from vllm.v1.attention.selector import AttentionSelectorConfig

# A child of the logger that vLLM configures: others are silent below WARNING.
logger = init_logger(f"vllm.{__name__}")


class NPUPlatform(Platform):
    """Huawei Ascend NPUs behind torch_npu. Fails closed: see support.py and decisions.py."""

    _enum = PlatformEnum.OOT
    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    ray_device_key = "NPU"
    dist_backend = "hccl"
    device_control_env_var = "ASCEND_RT_VISIBLE_DEVICES"
    ray_noset_device_env_vars: ClassVar[list[str]] = [
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
    ]
    simple_compile_backend = "eager"
    _has_watermark = False  # the engine of this process, as last configured

    # -- memory -------------------------------------------------------------------------------

    @classmethod
    def is_pin_memory_available(cls, *args: Any, **kwargs: Any) -> bool:
        from vllm_ascend_mrv2.decisions import pin_memory_decision

        return pin_memory_decision().choice == "on"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return int(torch.npu.get_device_properties(device_id).total_memory)

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        return float(torch.npu.memory_allocated(device))

    # -- devices ------------------------------------------------------------------------------

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return str(torch.npu.get_device_name(device_id))

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return str(cls.device_id_to_physical_device_id(device_id))

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> None:
        return None  # a CUDA notion; core's gates on it must stay closed

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return int(torch.npu.get_device_properties(device_id).cube_core_num)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.npu.set_device(device)

    @classmethod
    def current_stream(cls) -> torch.npu.Stream:
        return torch.npu.current_stream()

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.npu.manual_seed_all(seed)

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        from vllm_ascend_mrv2.support import SUPPORTED_DTYPES

        if str(dtype).removeprefix("torch.") not in SUPPORTED_DTYPES:
            names = ", ".join(SUPPORTED_DTYPES)
            raise ValueError(f"dtype {dtype} is not supported on this device; use one of {names}.")

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return True

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm_ascend_mrv2.distributed.communicator.NPUCommunicator"

    # -- hooks of core ------------------------------------------------------------------------

    @classmethod
    def import_kernels(cls) -> None:
        """Core's compiled kernels are CUDA's; none is loaded here."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Core's IR operators run by their native (torch) implementation only."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from vllm_ascend_mrv2 import kernels, layers
        from vllm_ascend_mrv2.compat import group_capture, runner_names, speculation, torch_cuda
        from vllm_ascend_mrv2.graph import capture, manager
        from vllm_ascend_mrv2.runner.output import AscendAsyncOutput, AscendPoolingOutput

        triton_gate.open_worker_gate()
        torch_cuda.install({"CUDAGraph": capture.CapturedGraph, "graph": capture.capture})
        group_capture.install()
        kernels.register()
        layers.register()
        runner_names.install(
            {
                "AsyncOutput": AscendAsyncOutput,
                "AsyncPoolingOutput": AscendPoolingOutput,
                "ModelCudaGraphManager": manager.AscendGraphManager,
                "async_tensor_h2d": kernels.upload.step_tensor_h2d,
            }
        )
        if speculation.core_is_known():
            cls._register_speculation()

    @classmethod
    def _register_speculation(cls) -> None:
        from vllm_ascend_mrv2.compat import runner_names
        from vllm_ascend_mrv2.kernels.spec_decode.sampler import RejectionSampler
        from vllm_ascend_mrv2.runner.output import DraftTokens
        from vllm_ascend_mrv2.runner.speculator import init_speculator

        runner_names.install(
            {
                "DraftTokensHandler": DraftTokens,
                "RejectionSampler": RejectionSampler,
                "init_speculator": init_speculator,
            }
        )

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "vllm_ascend_mrv2.kernels.lora.PunicaWrapper"

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: Any,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        from vllm_ascend_mrv2.attention.backend import AscendAttentionBackend
        from vllm_ascend_mrv2.attention.encoder import AscendEncoderBackend

        if selected_backend is not None and selected_backend.name != "CUSTOM":
            raise ValueError(
                f"attention backend {selected_backend.name} does not run on this device; leave "
                "--attention-backend unset."
            )
        is_encoder = AscendEncoderBackend.supports_attn_type(attn_selector_config.attn_type)
        backend = AscendEncoderBackend if is_encoder else AscendAttentionBackend
        reasons = backend.validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if reasons:
            raise ValueError(
                f"the Ascend attention backend cannot serve this model: {', '.join(reasons)}. "
                "The README's support table says what it can."
            )
        return f"{backend.__module__}.{backend.__qualname__}"

    # -- configuration ------------------------------------------------------------------------

    @classmethod
    def _choose_core_options(cls) -> None:
        """What unset means, in this process and in those it starts (they decide again)."""
        triton_gate.open_gate()
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")
        # CANN's routing takes no row without an expert. To leave padding out costs operators in
        # each layer of every step, with padding or not; routed like any token, nobody reads it.
        os.environ.setdefault("VLLM_MOE_SKIP_PADDING", "0")

    @classmethod
    def pre_register_and_update(cls, parser: ArgumentParser | None = None) -> None:
        cls._choose_core_options()
        device_argument.wrap_engine_args(cls.device_type)
        model_path.install()
        if not environ_check.core_asks_platform():
            environ_check.install(cls.validate_environ)
        bad_words_limit.install()
        # Only a process that serves requests has the protocol, or is about to load it.
        if parser is not None or "vllm.entrypoints.openai.completion.protocol" in sys.modules:
            unknown_parameters.install()
            last_words.listen()
            engine_death.install(last_words.heard)
        if parser is not None:
            device_argument.add_device_argument(parser, cls.device_type)

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Refuse graph and compile modes that were asked for, and set ours before core's."""
        from vllm.config import CompilationMode, CUDAGraphMode
        from vllm.config.vllm import OptimizationLevel

        from vllm_ascend_mrv2 import support

        cls._choose_core_options()
        compilation = vllm_config.compilation_config
        support.refuse(support.graph_requests(compilation))
        compilation.mode = CompilationMode.NONE
        model = vllm_config.model_config
        if model is not None and model.runner_type == "pooling":
            compilation.cudagraph_mode = CUDAGraphMode.NONE  # it decodes nothing
        if compilation.cudagraph_mode is None:
            asked_for_none = vllm_config.optimization_level == OptimizationLevel.O0
            compilation.cudagraph_mode = (
                CUDAGraphMode.NONE if asked_for_none else CUDAGraphMode.FULL_DECODE_ONLY
            )

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Refuse what is not supported, fill what core left to the platform, log the record."""
        from vllm.v1.metrics import prometheus

        from vllm_ascend_mrv2 import decisions, support
        from vllm_ascend_mrv2.runner.input_copy import input_copy_of

        sets = pins.cores() if envs.UNVERIFIED_CORE.read() == "1" else pins.verified_cores()
        problems = pins.version_problems(among=sets)
        support.refuse([*problems, *vllm_ascend_mrv2.contract_problems()])
        support.refuse(support.refusals_for(vllm_config))
        parallel = vllm_config.parallel_config
        # Ray's workers see what Ray gives them, unless this process sees all that the machine has.
        sees_all = cls.device_control_env_var not in os.environ
        if sees_all or not parallel.use_ray:
            support.refuse(support.device_problems(parallel, torch.npu.device_count()))
        try:
            input_copy_of(vllm_config)
        except ValueError as error:
            support.refuse([str(error)])
        # Nothing here is compiled just in time, and core's warm-up runs kernels of other devices.
        vllm_config.kernel_config.enable_jit_warmup = False
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "vllm_ascend_mrv2.worker.NPUWorker"
        engine_folder.open_for_engines()
        if prometheus._prometheus_multiproc_dir is not None:  # of several API servers
            engine_folder.goes_too(Path(prometheus._prometheus_multiproc_dir.name))
        # A forked child cannot use a device its parent initialised.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        # Ray's handler of SIGTERM ends a process by SIGABRT three seconds later, while core still
        # shuts down; what Ray has started then stays for more than a minute.
        os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
        cls._has_watermark = vllm_config.watermark_config is not None
        if vllm_config.model_config is not None:
            logger.info("\n%s", decisions.as_table(decisions.collect(vllm_config)))

    @classmethod
    def validate_environ(cls, hard_fail: bool) -> None:
        """Core's check, without our own switches; ours are checked name by name and value."""
        for switch in envs.SWITCHES:
            switch.read()
        envs.refuse_unknown()
        ours = {name: os.environ.pop(name) for name in list(os.environ) if name in _SWITCH_NAMES}
        try:
            if environ_check.core_asks_platform():
                super().validate_environ(hard_fail)
            else:
                environ_check.of_core(hard_fail)
        finally:
            os.environ.update(ours)

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse a request whose sampling parameters this engine cannot serve."""
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import SamplingParams

        from vllm_ascend_mrv2 import kernels

        if not isinstance(params, SamplingParams):
            return
        if reason := kernels.unsupported_sampling(params, cls._has_watermark):
            raise VLLMValidationError(reason)  # any other error reaches the client as an empty 500


_SWITCH_NAMES = frozenset(switch.name for switch in envs.SWITCHES)
