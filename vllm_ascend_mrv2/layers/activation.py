# SPDX-License-Identifier: Apache-2.0
"""SwiGLU on npu_swiglu, and the exact GELU."""

from __future__ import annotations

import torch
import torch_npu
from vllm.model_executor.layers import activation as core


class AscendSiluAndMul(core.SiluAndMul):
    """Core's SiluAndMul: silu(first half) * second half of the last dimension, in one launch."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., 2 * d] float32, float16 or bfloat16 -> [..., d]."""
        return torch_npu.npu_swiglu(x)


class AscendGelu(core.GELU):
    """Core's GELU. On an A2 torch_npu computes the tanh form, whichever is asked for."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """x: any shape, float32, float16 or bfloat16 -> the same; the form with erf."""
        return torch_npu.npu_gelu(x, approximate="none")


def register() -> None:
    core.SiluAndMul.register_oot(AscendSiluAndMul)
    core.GELU.register_oot(AscendGelu)
