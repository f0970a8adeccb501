# SPDX-License-Identifier: Apache-2.0
"""Block tables of core's `v1/worker/gpu/block_table.py` without its pointer-table kernels.

Core's kernels reach the groups through uint64 tables of device addresses, which no torch operator
can follow; so the class is replaced, not the kernels. Where a KV cache lives is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.worker.gpu import block_table as core

from vllm_ascend_mrv2.kernels import constants, ragged
from vllm_ascend_mrv2.kernels.buffer_utils import apply_staged_writes
from vllm_ascend_mrv2.kernels.errors import NotReplacedError


class BlockTables(core.BlockTables):
    """Core's BlockTables, one group after the other. Context parallelism is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.cp_size != 1:
            raise NotReplacedError(
                f"context parallelism: cp_size {self.cp_size} has no replacement of "
                "_compute_slot_mappings_kernel on this device; use "
                "--decode-context-parallel-size 1."
            )

    def _make_ptr_tensor(self, x: Iterable[torch.Tensor]) -> None:
        """No table of addresses: nothing here reads one."""
        return

    def apply_staged_writes(self) -> None:
        """Write the staged block ids to all groups' tables: one H2D copy, one scatter a group.

        core's num_blocks is read by its gather kernel only and stays on the host.
        """
        apply_staged_writes(self.block_tables)

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Rows of the batch, per group [num_reqs_padded, max_num_blocks] int32.

        idx_mapping: [R] int64, all >= 0. Rows past R are zero, the null block. Entries past a
        request's last block are stale block ids, as in core. num_computed_tokens (core 0.33) is for
        sliding windows, which the attention backend refuses.
        """
        num_reqs = idx_mapping.shape[0]
        gathered = tuple(self.input_block_tables) if out is None else out
        for table, rows in zip(self.block_tables, gathered, strict=True):
            torch.index_select(table.gpu, 0, idx_mapping, out=rows[:num_reqs])
            if num_reqs_padded > num_reqs:
                rows[num_reqs:num_reqs_padded].zero_()
        return tuple(rows[:num_reqs_padded] for rows in gathered)

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """KV slot of each token, [num_groups, num_tokens_padded] int64.

        idx_mapping: [R] int64, negative for a row that owns no blocks; query_start_loc: [>= R + 1]
        int32; positions: [>= the batch's tokens] int64. Tokens of no request, and all slots past
        them, get PAD_SLOT_ID.
        """
        mappings = self.slot_mappings if out is None else out
        if self.num_kv_cache_groups == 0:
            return mappings[:, :num_tokens_padded]
        mappings.fill_(PAD_SLOT_ID)
        num_reqs, num_tokens = idx_mapping.shape[0], min(num_tokens_padded, positions.shape[0])
        rows = ragged.rows_of(query_start_loc, num_reqs, num_tokens)
        request = idx_mapping.index_select(0, rows)
        owned = ragged.in_batch(query_start_loc, num_reqs, num_tokens).logical_and_(request >= 0)
        position = positions[:num_tokens]
        pad = constants.scalar(PAD_SLOT_ID, mappings.device, mappings.dtype)
        for group, (table, block_size) in enumerate(
            zip(self.block_tables, self.block_sizes, strict=True)
        ):
            if not self._slot_mapping_enabled[group]:
                continue
            column = position // block_size
            # a token that owns no block reads element 0, which is there
            entry = torch.add(column, request, alpha=table.gpu.stride(0)).mul_(owned)
            block = table.gpu.view(-1).index_select(0, entry)
            slot = torch.add(position, block - column, alpha=block_size)
            torch.where(owned, slot, pad, out=mappings[group, :num_tokens])
        return mappings[:, :num_tokens_padded]
