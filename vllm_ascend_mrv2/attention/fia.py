# SPDX-License-Identifier: Apache-2.0
"""One call of npu_fused_infer_attention_score (FIA): its arguments, and the ways to make it.

Eagerly it allocates its output. In a graph it writes into given tensors, so that a later task
update can make the same call with other host lengths; who records such calls is decided by
`capturing_into`. What the lengths are is the plan's business.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch_npu

# FIA sparse_mode 3 (causal, aligned to the last key) takes a fixed mask of this size.
COMPRESSED_MASK_SIZE = 2048
SPARSE_CAUSAL = 3
SPARSE_GIVEN = 1  # the mask says all


@dataclass(frozen=True)
class FiaCall:
    """The tensors and parameters of one layer's call (paged, causal).

    query: [T, num_heads, head_size]; with `mask` [num_reqs, query_len, num_heads, head_size]. mask:
    [num_reqs, 1, query_len, >= longest] bool, what each query must not see; None: nothing beyond
    its own position, by lengths that are exact. key_cache, value_cache: [num_blocks, block_size,
    num_kv_heads * head_size], contiguous; block_table: [num_reqs, max_blocks] int32.
    Host lengths are given per call: query_ends cumulative (with a mask: of each request), kv_lens
    per request.
    """

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    block_size: int
    num_heads: int
    num_kv_heads: int
    scale: float
    mask: torch.Tensor | None = None

    def attend(self, query_ends: list[int], kv_lens: list[int]) -> torch.Tensor:
        """The attended values, newly allocated, shaped like `query`."""
        attended, _ = torch_npu.npu_fused_infer_attention_score(
            self.query,
            self.key_cache,
            self.value_cache,
            actual_seq_lengths=query_ends,
            actual_seq_lengths_kv=kv_lens,
            **self._parameters(),
        )
        return attended

    def workspace(self, query_ends: list[int], kv_lens: list[int]) -> torch.Tensor:
        """A workspace that suffices for this call with any lengths."""
        return torch_npu._npu_fused_infer_attention_score_get_max_workspace(
            self.query,
            self.key_cache,
            self.value_cache,
            actual_seq_lengths=query_ends,
            actual_seq_lengths_kv=kv_lens,
            **self._parameters(),
        )

    def attend_into(
        self,
        output: torch.Tensor,
        softmax_lse: torch.Tensor,
        workspace: torch.Tensor,
        query_ends: list[int],
        kv_lens: list[int],
    ) -> None:
        """The same into `output`; allocates nothing, so that a graph can hold and update it."""
        torch_npu.npu_fused_infer_attention_score.out(
            actual_seq_lengths=query_ends,
            actual_seq_lengths_kv=kv_lens,
            **self.out_arguments(output, softmax_lse, workspace),
        )

    def out_arguments(
        self, output: torch.Tensor, softmax_lse: torch.Tensor, workspace: torch.Tensor
    ) -> dict[str, Any]:
        """Every argument of `attend_into`'s call but the lengths, by the schema's names."""
        return {
            "query": self.query,
            "key": self.key_cache,
            "value": self.value_cache,
            "workspace": workspace,
            "out": [output, softmax_lse],
            **self._parameters(),
        }

    def _parameters(self) -> dict[str, object]:
        return {
            "block_table": self.block_table,
            "block_size": self.block_size,
            "input_layout": "TND" if self.mask is None else "BSND",
            "num_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "scale": self.scale,
            **self._masking(),
        }

    def _masking(self) -> dict[str, object]:
        if self.mask is not None:
            return {"sparse_mode": SPARSE_GIVEN, "atten_mask": self.mask}
        causal = compressed_causal_mask(self.query.device)
        return {"sparse_mode": SPARSE_CAUSAL, "atten_mask": causal}


_masks: dict[torch.device, torch.Tensor] = {}


def compressed_causal_mask(device: torch.device) -> torch.Tensor:
    """FIA's fixed causal mask, [2048, 2048] int8 on `device`, made once per device.

    The first call copies from the host: make it before a graph is captured.
    """
    mask = _masks.get(device)
    if mask is None:
        size = COMPRESSED_MASK_SIZE
        mask = torch.ones(size, size, dtype=torch.int8).triu_(1).to(device)
        _masks[device] = mask
    return mask


class FiaRecorder(Protocol):
    """Takes a call during capture and returns the tensor its result will be in."""

    def record(self, call: FiaCall, query_ends: list[int], kv_lens: list[int]) -> torch.Tensor: ...


_capture = threading.local()


@contextmanager
def capturing_into(recorder: FiaRecorder) -> Iterator[None]:
    """Within this block the thread's FIA calls go to `recorder`."""
    _capture.recorder = recorder
    try:
        yield
    finally:
        _capture.recorder = None


def attend(call: FiaCall, query_ends: list[int], kv_lens: list[int]) -> torch.Tensor:
    """Make the call now, or hand it to the recorder of the capture under way."""
    recorder: FiaRecorder | None = getattr(_capture, "recorder", None)
    if recorder is None:
        return call.attend(query_ends, kv_lens)
    return recorder.record(call, query_ends, kv_lens)
