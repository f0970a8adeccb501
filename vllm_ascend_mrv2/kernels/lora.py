# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of a batch: core's punica wrapper in torch operations that a graph can capture.

Which adapter a token has is a table on the device, written before the step; -1 is none. Every
adapter slot is computed for every token, and what a token did not ask for is masked out between the
two products: ranks are small, and nothing then depends on which adapters a batch has. A batch
without adapters computes none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

from vllm_ascend_mrv2.kernels import constants, upload

NO_SLOT = -1


class PunicaWrapper(PunicaWrapperBase):
    """See core's base class for what each method adds; dense layers only.

    Weights: A [slots, 1, rank, in], B [slots, 1, out, rank], zero in a slot without an adapter.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Rows past a batch are read where a graph pads it.
        self._token_lora_indices.fill_(NO_SLOT)
        self._sampler_indices.fill_(NO_SLOT)
        self._embeddings_indices.zero_()

    def update_metadata(
        self,
        mapping: LoRAMapping,
        lora_index_to_id: list[int | None],
        max_loras: int,
        vocab_size: int,
        **kwargs: Any,
    ) -> None:
        """Put a step's adapters on the device: one staged copy.

        mapping: adapter ids of the tokens and of the logits' rows, 0 for none.
        """
        slots = {lora_id: slot for slot, lora_id in enumerate(lora_index_to_id) if lora_id}
        tokens = _slots_of(np.asarray(mapping.index_mapping, np.int64), slots)
        rows = _slots_of(np.asarray(mapping.prompt_mapping, np.int64), slots)
        self.no_lora = not (tokens >= 0).any()
        self.indices_len[:2] = len(tokens), len(rows)
        view = upload.stage(np.concatenate((tokens, rows)), self.device)

        def write() -> None:
            of_tokens, of_rows = view.split((len(tokens), len(rows)))
            self._token_lora_indices[: len(tokens)].copy_(of_tokens)
            self._sampler_indices[: len(rows)].copy_(of_rows)
            offsets = of_tokens.clamp_min(0).mul_(vocab_size)
            self._embeddings_indices[: len(tokens)].copy_(offsets)

        upload.after(write)
        upload.flush()

    def add_shrink(
        self,
        y: tuple[torch.Tensor, ...] | torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        scale: float,
        **kwargs: Any,
    ) -> None:
        """y[i] [T, rank] = scale * (x [T, in] A[i]^T) of each token's adapter; float32."""
        if self.no_lora:
            return
        x = x.view(-1, x.shape[-1])
        indices = self._token_lora_indices[: x.shape[0]]
        for out, a in zip(y, lora_a_stacked, strict=True):
            out.view(-1, out.shape[-1]).copy_(_shrink(x, a, indices).sum(1).mul_(scale))

    def add_expand(
        self,
        y: torch.Tensor,
        x: tuple[torch.Tensor, ...] | torch.Tensor,
        lora_b_stacked: tuple[torch.Tensor, ...],
        output_slices: tuple[int, ...],
        offset_start: int = 0,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """y [T, out]: each slice of columns plus x[i] [T, rank] B[i]^T of each token's adapter."""
        assert add_inputs, "only CUDA's dual streams ask for the sum alone"
        if self.no_lora:
            return
        y = y.view(-1, y.shape[-1])
        mask = _one_hot(self._token_lora_indices[: y.shape[0]], lora_b_stacked[0].shape[0])
        for part, b, columns in zip(
            x, lora_b_stacked, _slices(output_slices, offset_start), strict=True
        ):
            _expand(y[:, columns], part.view(-1, 1, part.shape[-1]) * mask, b)

    def add_lora_embedding(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """y [T, hidden] += x [T, rank] B^T of each token's adapter."""
        self.add_expand(y, (x,), (lora_b_stacked,), (y.shape[-1],), add_inputs=add_inputs)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """y [T, out]: each slice of columns plus scale * (x A[i]^T) B[i]^T."""
        assert add_inputs, "only CUDA's dual streams ask for the sum alone"
        if self.no_lora:
            return
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        indices = self._token_lora_indices[: x.shape[0]]
        columns = _slices(output_slices, 0)
        for a, b, part in zip(lora_a_stacked, lora_b_stacked, columns, strict=True):
            _expand(y[:, part], _shrink(x, a, indices).mul_(scale), b)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """y [n, vocab_size] += scale * (x [n, hidden] A^T) B^T of each row's adapter."""
        if self.no_lora:
            return
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        indices = self._sampler_indices[: x.shape[0]]
        columns = min(y.shape[1], lora_b_stacked.shape[-2])
        shrunk = _shrink(x, lora_a_stacked, indices).mul_(scale)
        _expand(y[:, :columns], shrunk, lora_b_stacked[..., :columns, :])

    def apply_lora_full_linear(self, *args: Any, **kwargs: Any) -> None:
        """Only classification heads of pooling models are replaced whole; those refuse adapters."""
        raise NotImplementedError(
            "adapters that replace a classification head are not supported on this device; use one "
            "without modules_to_save."
        )


def _slots_of(ids: np.ndarray, slots: dict[int, int]) -> np.ndarray:
    """Adapter ids -> slots, both [n] int64; id 0 has none."""
    known, where = np.unique(ids, return_inverse=True)
    of_known = [slots[lora_id] if lora_id > 0 else NO_SLOT for lora_id in known.tolist()]
    return np.asarray(of_known, np.int64)[where]


def _slices(sizes: tuple[int, ...], start: int) -> list[slice]:
    ends = (start + np.cumsum(sizes)).tolist()
    return [slice(begin, end) for begin, end in zip((start, *ends), ends, strict=False)]


def _one_hot(indices: torch.Tensor, slots: int) -> torch.Tensor:
    """[n, slots, 1] bool: each row's slot."""
    return (indices.unsqueeze(1) == constants.arange(slots, indices.device)).unsqueeze(2)


def _shrink(x: torch.Tensor, a: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """x [n, in] times every slot's A^T, zero but for the row's own: [n, slots, rank] float32."""
    slots, rank = a.shape[0], a.shape[-2]
    shrunk = torch.nn.functional.linear(x.to(a.dtype), a.view(slots * rank, a.shape[-1]))
    return shrunk.float().view(-1, slots, rank) * _one_hot(indices, slots)


def _expand(y: torch.Tensor, shrunk: torch.Tensor, b: torch.Tensor) -> None:
    """y [n, out] += the slots' shrunk [n, slots, rank] times B^T, slot by slot in place."""
    for slot in range(b.shape[0]):
        y.add_(torch.nn.functional.linear(shrunk[:, slot].to(b.dtype), b[slot, 0]).to(y.dtype))
