# SPDX-License-Identifier: Apache-2.0
"""Core's watermarker and its sampler, joined to this device.

Which requests are watermarked, from which contexts, and what a detector looks for, is core's.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from vllm.v1.watermarking import gpu_sampler, gumbel
from vllm.v1.watermarking.prfs import PhiloxPRF
from vllm.v1.watermarking.watermarker import RandomSampler, WatermarkSample
from vllm.v1.worker.gpu.sample import watermark as core

from vllm_ascend_mrv2.kernels.sample import sampler


class GumbelWatermarker(gumbel.GumbelWatermarker):
    """Takes core's way for CUDA, whose kernels are replaced, on every device but the CPU."""

    def _is_fused(self, logits: torch.Tensor) -> bool:
        return type(self.prf) is PhiloxPRF and logits.device.type != "cpu"

    def _sample_watermarked(self, logits: torch.Tensor, contexts: torch.Tensor) -> WatermarkSample:
        if not self._is_fused(logits):
            return super()._sample_watermarked(logits, contexts)
        return WatermarkSample(core.philox_gumbel_sample(logits, contexts, self.prf.key), logits)

    def _try_sample_mixed(
        self,
        logits: torch.Tensor,
        contexts: torch.Tensor,
        skip_mask: torch.Tensor,
        random_sampler: RandomSampler,
    ) -> WatermarkSample | None:
        if not self._is_fused(logits):
            return super()._try_sample_mixed(logits, contexts, skip_mask, random_sampler)
        # Its fields are the function's arguments.
        drawn_by = {
            field.name: getattr(random_sampler, field.name) for field in fields(random_sampler)
        }
        tokens = core.philox_gumbel_sample(
            logits, contexts, self.prf.key, skip_mask=skip_mask, **drawn_by
        )
        return WatermarkSample(tokens, logits)


class WatermarkSampler(gpu_sampler.GPUWatermarkSampler, sampler.Sampler):
    """Core's watermarking sampler on top of ours."""

    def add_request(self, req_idx: int, *args: Any, **kwargs: Any) -> None:
        super().add_request(req_idx, *args, **kwargs)
        # A greedy request is never watermarked; another one is no plain draw from its logits.
        is_random = bool(self.sampling_states.temperature.np[req_idx])
        self.is_plain[req_idx] &= not (self.watermarking.np[req_idx] and is_random)
