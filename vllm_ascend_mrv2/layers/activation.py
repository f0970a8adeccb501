# SPDX-License-Identifier: Apache-2.0
"""SwiGLU on npu_swiglu."""

from __future__ import annotations

import torch
import torch_npu
from vllm.model_executor.layers import activation as core


class AscendSiluAndMul(core.SiluAndMul):
    """Core's SiluAndMul: silu(first half) * second half of the last dimension, in one launch."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., 2 * d] float32, float16 or bfloat16 -> [..., d]."""
        return torch_npu.npu_swiglu(x)


def register() -> None:
    core.SiluAndMul.register_oot(AscendSiluAndMul)
