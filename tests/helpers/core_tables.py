# SPDX-License-Identifier: Apache-2.0
"""What the oracle runs for classes of core that need a device to construct: their kernels, launched
as the class launches them. Imported by the oracle's process only.
"""

from __future__ import annotations

import torch


def _addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def gather_block_tables(
    tables: list[torch.Tensor],
    num_blocks: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: list[torch.Tensor],
) -> None:
    from vllm.v1.worker.gpu.block_table import _gather_block_tables_kernel

    _gather_block_tables_kernel[(len(tables), num_reqs_padded)](
        idx_mapping,
        _addresses(tables),
        _addresses(out),
        torch.tensor([t.stride(0) for t in tables]),
        num_blocks,
        num_blocks.stride(0),
        idx_mapping.shape[0],
        BLOCK_SIZE=1024,
    )


def compute_slot_mappings(
    tables: list[torch.Tensor],
    block_sizes: list[int],
    enabled: list[bool],
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
) -> None:
    from vllm.v1.worker.gpu.block_table import _compute_slot_mappings_kernel

    _compute_slot_mappings_kernel[(len(tables), idx_mapping.shape[0] + 1)](
        out.shape[1],
        idx_mapping,
        query_start_loc,
        positions,
        _addresses(tables),
        torch.tensor([t.stride(0) for t in tables]),
        torch.tensor(block_sizes, dtype=torch.int32),
        torch.tensor(enabled),
        torch.ones(len(tables), dtype=torch.bool),
        out,
        out.stride(0),
        0,
        CP_SIZE=1,
        CP_INTERLEAVE=1,
        PAD_ID=-1,
        TRITON_BLOCK_SIZE=1024,
    )


def apply_write(
    table: torch.Tensor,
    rows: list[int],
    starts: list[int],
    contents: list[float],
    cumulative_lengths: list[int],
) -> None:
    from vllm.v1.worker.gpu.buffer_utils import _apply_write_kernel

    if not rows:
        return
    _apply_write_kernel[(len(rows),)](
        table,
        table.stride(0),
        torch.tensor(rows, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(contents, dtype=table.dtype),
        torch.tensor(cumulative_lengths, dtype=torch.int32),
        None,
        BLOCK_SIZE=1024,
        MULTI_GROUP=False,
    )


def sampling_mask(
    logits: torch.Tensor, cu_num_logits: torch.Tensor, num_sampled: torch.Tensor, max_num_kept: int
) -> object:
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors

    return SamplingMaskTensors.from_logits(logits, cu_num_logits, num_sampled, max_num_kept)


def apply_prompt_embeds(
    inputs_embeds: torch.Tensor,
    embeds: list[torch.Tensor | None],
    masks: list[torch.Tensor | None],
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    max_query_len: int,
) -> torch.Tensor:
    from vllm.v1.worker.gpu.model_states.prompt_embeds import _apply_prompt_embeds_kernel

    def addresses(tensors: list[torch.Tensor | None]) -> torch.Tensor:
        return torch.tensor([0 if t is None else t.data_ptr() for t in tensors], dtype=torch.uint64)

    token_block = 4
    _apply_prompt_embeds_kernel[(idx_mapping.shape[0], -(-max_query_len // token_block))](
        inputs_embeds,
        inputs_embeds.stride(0),
        addresses(embeds),
        addresses(masks),
        torch.tensor([0 if t is None else t.shape[0] for t in embeds], dtype=torch.int32),
        idx_mapping,
        query_start_loc,
        num_computed_tokens,
        inputs_embeds.shape[1],
        TOKEN_BLOCK=token_block,
        BLOCK_SIZE=8,
    )
    return inputs_embeds
