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
