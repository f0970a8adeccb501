# SPDX-License-Identifier: Apache-2.0
"""RMSNorm on npu_rms_norm and npu_add_rms_norm: one launch, where core's torch code takes six."""

from __future__ import annotations

import torch
import torch_npu
from vllm.model_executor.layers import layernorm as core


class AscendRMSNorm(core.RMSNorm):
    """Core's RMSNorm; norms over a part of the row, or without a weight, stay core's."""

    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x: [..., hidden_size] float32, float16 or bfloat16; residual: None, or as x.

        Returns the normed x, and with a residual also x + residual.
        """
        if (
            self.variance_size_override is not None
            or not self.has_weight
            or self.weight.dtype != x.dtype  # the operator has one dtype for both
        ):
            return self.forward_native(x, residual)
        if residual is None:
            return torch_npu.npu_rms_norm(x, self.weight, self.variance_epsilon)[0]
        normed, _, total = torch_npu.npu_add_rms_norm(
            x, residual, self.weight, self.variance_epsilon
        )
        return normed, total


def register() -> None:
    core.RMSNorm.register_oot(AscendRMSNorm)
