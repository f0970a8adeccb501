# SPDX-License-Identifier: Apache-2.0
"""Lets core's MRV2 modules, which name `torch.cuda`, drive the NPU.

Why: core's runner creates streams and events as `torch.cuda.X` and has no hook for it.
What: in each module listed below, and only there, the module's global name `torch` becomes a view
of torch whose `cuda` attribute is the NPU's. torch itself, and everybody else's `torch.cuda`,
stay as they are. Undo with `uninstall()`.
Core versions: 0.30 to 0.33. Goes when core's runner uses `torch.accelerator` or platform streams.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

# Modules of core that use torch.cuda at run time on the path of a decoder-only model (core 0.32).
MODULES: tuple[str, ...] = (
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.async_utils",
    "vllm.v1.worker.gpu.pp_utils",
    "vllm.v1.worker.gpu.structured_outputs",
    "vllm.v1.worker.gpu.spec_decode.utils",
    "vllm.v1.worker.gpu.cudagraph_utils",
    "vllm.distributed.parallel_state",
)


def _npu_as_cuda(extra: Mapping[str, Any]) -> types.SimpleNamespace:
    from vllm.utils import torch_utils

    def set_stream(stream: torch.npu.Stream) -> None:
        # core tracks the current stream in a thread-local of its own torch.cuda.set_stream
        torch_utils._current_stream_tls.value = stream
        torch.npu.set_stream(stream)

    return types.SimpleNamespace(
        Stream=torch.npu.Stream,
        Event=torch.npu.Event,
        stream=torch.npu.stream,
        set_stream=set_stream,
        current_stream=torch.npu.current_stream,
        default_stream=torch.npu.default_stream,
        synchronize=torch.npu.synchronize,
        **extra,
    )


class _TorchView(types.ModuleType):
    """torch, but for the names given; attributes torch gains later are seen too."""

    def __init__(self, **overrides: Any) -> None:
        super().__init__("torch")
        self.__dict__.update(torch.__dict__)
        self.__dict__.update(overrides)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def install(extra: Mapping[str, Any]) -> None:
    """Give every listed module the NPU view. Idempotent.

    extra: further names of `torch.cuda`, such as what stands for CUDAGraph.
    """
    view: _TorchView | None = None
    for name in MODULES:
        module = importlib.import_module(name)
        if not isinstance(module.__dict__["torch"], _TorchView):
            view = view or _TorchView(cuda=_npu_as_cuda(extra))
            module.__dict__["torch"] = view


def uninstall() -> None:
    """Give the listed modules that are loaded plain torch back."""
    for name in MODULES:
        if (module := sys.modules.get(name)) is not None:
            module.__dict__["torch"] = torch
