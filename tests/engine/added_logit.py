# SPDX-License-Identifier: Apache-2.0
"""A custom logits processor, as a user would write one: adds to the logit of a request's token.

A request asks by `extra_args={"added_logit": [token, value]}`.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor


class AddedLogit(LogitsProcessor):
    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor

        self.tokens = UvaBackedTensor(req_states.max_num_reqs, dtype=torch.int64)
        self.values = UvaBackedTensor(req_states.max_num_reqs, dtype=torch.float32)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        asked = (sampling_params.extra_args or {}).get("added_logit")
        if asked is not None and len(asked) != 2:
            raise ValueError("added_logit must be [token, value]")

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        token, value = (sampling_params.extra_args or {}).get("added_logit", (0, 0.0))
        self.tokens.np[req_idx], self.values.np[req_idx] = token, value
        return bool(value)

    def apply_staged_writes(self) -> None:
        self.tokens.copy_to_uva()
        self.values.copy_to_uva()

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        rows = ctx.expanded_idx_mapping
        tokens = self.tokens.gpu.index_select(0, rows).unsqueeze(1)
        return logits.scatter_add_(1, tokens, self.values.gpu.index_select(0, rows).unsqueeze(1))
