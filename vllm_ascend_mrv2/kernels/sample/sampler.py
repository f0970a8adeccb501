# SPDX-License-Identifier: Apache-2.0
"""Core's sampler, with what only the host knows about a batch put to use.

The random draw only: which rows are greedy, and seed states hashed once per request. The order of
processors, logprobs and the output are core's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.sample import sampler as core

from vllm_ascend_mrv2.kernels.sample import gumbel


class Sampler(core.Sampler):
    """Draws core's tokens: a batch without random rows costs one argmax, no noise."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # [max_num_reqs] int32: murmur3 of each request's seed, so that no step hashes seeds
        self.seed_states = UvaBackedTensor(self.sampling_states.max_num_reqs, dtype=torch.int32)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> None:
        super().add_request(req_idx, sampling_params)
        seed = torch.from_numpy(self.sampling_states.seeds.np[req_idx : req_idx + 1])
        self.seed_states.np[req_idx] = gumbel.seed_state(seed).numpy()[0]

    def apply_staged_writes(self) -> None:
        super().apply_staged_writes()
        self.seed_states.copy_to_uva()

    def _sample_random(
        self,
        processed_logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping_np: npt.NDArray[np.integer[Any]],
        pos: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        use_fused_sampler: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled tokens [n] int64 and the logits they were drawn from."""
        states = self.sampling_states
        logits = apply_top_k_top_p(processed_logits, top_k, top_p)
        if not states.temperature.np[idx_mapping_np].any():
            return logits.argmax(-1), logits
        if self.use_fp64_gumbel:
            sampled = gumbel.gumbel_sample(
                logits,
                expanded_idx_mapping,
                states.temperature.gpu,
                states.seeds.gpu,
                pos,
                apply_temperature=False,
                is_drafting=False,
                use_fp64=True,
            )
            return sampled, logits
        sampled = gumbel.sample_seeded(
            logits,
            self.seed_states.gpu.index_select(0, expanded_idx_mapping),
            states.temperature.gpu.index_select(0, expanded_idx_mapping),
            pos,
            max_pos=self.req_states.max_model_len,
        )
        return sampled, logits
