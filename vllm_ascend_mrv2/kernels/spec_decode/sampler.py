# SPDX-License-Identifier: Apache-2.0
"""Core's rejection sampler, with what only the host knows about a batch put to use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as core


class RejectionSampler(core.RejectionSampler):
    """Verifies as core: a batch without random rows draws nothing."""

    _all_greedy = False

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: npt.NDArray[np.integer[Any]],
        *rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        temperatures = self.sampler.sampling_states.temperature.np[idx_mapping_np]
        self._all_greedy = not temperatures.any()
        made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = super()._verify(
            logits,
            draft_logits,
            draft_sampled,
            pos,
            cu_num_logits,
            idx_mapping,
            idx_mapping_np,
            *rest,
        )
        return made

    def _watermarking_kwargs(self, *args: Any) -> dict[str, Any]:
        """What core adds to its call of `rejection_sample`: the one place to add to it."""
        return {**super()._watermarking_kwargs(*args), "all_greedy": self._all_greedy}
