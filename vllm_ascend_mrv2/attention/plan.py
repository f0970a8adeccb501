# SPDX-License-Identifier: Apache-2.0
"""The checked plan of one FIA call: host lengths, tokens and block tables that fit each other.

FIA reads whatever its host lengths say. A length that is one too long reads another request's
keys and gives a plausible wrong token, so nothing is launched from lengths that were not checked
here. Checks are vectorised and read only host data and shapes: no device access.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


class PlanError(ValueError):
    """Host lengths, tokens and block tables of a step contradict each other."""


@dataclass
class HostSeqLens:
    """Host sequence lengths of the batch being prepared, as the authority published them.

    The attention builder takes lengths only from here: without a published value it refuses.
    """

    values: np.ndarray | None = None  # [num_reqs] int32, tokens including this step's

    def publish(self, values: np.ndarray) -> None:
        """Set the lengths of the batch whose metadata is built next."""
        self.values = values

    def require(self, num_reqs: int) -> np.ndarray:
        """The published lengths, [num_reqs] int32. Raises PlanError where nobody spoke."""
        if self.values is None or len(self.values) < num_reqs:
            raise PlanError(
                f"attention metadata for {num_reqs} requests was asked for, but no authority has "
                "published their sequence lengths; this is a fault of the plugin, please report it"
            )
        return self.values[:num_reqs]

    def require_up_to(self, size: int) -> np.ndarray:
        """The published lengths of a batch that is padded to `size` rows, [<= size] int32."""
        return self.require(1 if self.values is None else min(size, len(self.values)))


@dataclass(frozen=True)
class FiaPlan:
    """What every attention layer of a KV cache group needs for one step (paged).

    num_tokens: T, query tokens in this step.
    query_ends: num_reqs cumulative query lengths, host ints; the last is T. With a mask: of each.
    kv_lens: num_reqs KV lengths including this step's tokens, host ints. With a mask: or more.
    block_table: [>= num_reqs, max_blocks] int32 on the device, in blocks of block_size tokens.
    slot_mapping: [>= T] int64 on the device, token -> block * block_size + offset.
    block_size: tokens per KV block.
    mask: [num_reqs, 1, T / num_reqs, >= longest] bool on the device, what a query must not see.
    """

    num_tokens: int
    query_ends: list[int]
    kv_lens: list[int]
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int
    mask: torch.Tensor | None = None


def make_fia_plan(
    query_start_loc: np.ndarray,
    kv_lens: np.ndarray,
    num_tokens: int,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
    max_model_len: int,
    mask: torch.Tensor | None = None,
) -> FiaPlan:
    """Check a step's lengths and return its plan.

    query_start_loc: [num_reqs + 1] int32 host. kv_lens: [num_reqs] int32 host. mask: see FiaPlan.
    Raises PlanError naming the first request that breaks a rule.
    """
    num_reqs = len(kv_lens)
    if len(query_start_loc) != num_reqs + 1:
        raise PlanError(
            f"query_start_loc has {len(query_start_loc)} entries for {num_reqs} requests; "
            f"{num_reqs + 1} are needed"
        )
    query_ends = query_start_loc[1:]
    query_lens = query_ends - query_start_loc[:-1]
    if query_start_loc[0] != 0 or query_ends[-1] != num_tokens:
        raise PlanError(
            f"query_start_loc runs from {query_start_loc[0]} to {query_ends[-1]}; the step has "
            f"{num_tokens} tokens"
        )
    _check_rows(query_lens >= 1, "has no query token", query_lens)
    _check_rows(kv_lens >= query_lens, "has fewer KV tokens than query tokens", kv_lens)
    _check_rows(kv_lens <= max_model_len, f"is longer than max_model_len={max_model_len}", kv_lens)
    rows, max_blocks = block_table.shape
    if rows < num_reqs:
        raise PlanError(f"the block table has {rows} rows for {num_reqs} requests")
    capacity = max_blocks * block_size
    _check_rows(kv_lens <= capacity, f"exceeds its {max_blocks} block-table columns", kv_lens)
    if slot_mapping.shape[0] < num_tokens:
        raise PlanError(f"slot_mapping has {slot_mapping.shape[0]} slots for {num_tokens} tokens")
    return FiaPlan(
        num_tokens=num_tokens,
        query_ends=query_ends.tolist() if mask is None else query_lens.tolist(),
        kv_lens=kv_lens.tolist(),
        block_table=block_table,
        slot_mapping=slot_mapping,
        block_size=block_size,
        mask=mask,
    )


def padded_decode_lens(kv_lens: list[int], size: int, query_len: int = 1) -> list[int]:
    """KV lengths of a decode batch padded to `size` rows for a captured graph.

    A row without a request (length 0, or past the list) attends to as many tokens of the null block
    as it has queries.
    """
    return [length or query_len for length in kv_lens] + [query_len] * (size - len(kv_lens))


def uniform_query_ends(size: int, query_len: int, has_mask: bool = False) -> list[int]:
    """Cumulative query lengths of `size` rows of `query_len` tokens; with a mask, of each row."""
    if has_mask:
        return [query_len] * size
    return list(range(query_len, query_len * size + 1, query_len))


def make_captured_plan(
    kv_lens: list[int],
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
    query_len: int = 1,
    mask: torch.Tensor | None = None,
) -> FiaPlan:
    """The plan of a decode batch in a captured graph: `query_len` tokens per row, padded rows
    included.

    Its lengths are those of the capture; a replay's are given to the graph's tasks.
    """
    size = block_table.shape[0]
    return FiaPlan(
        num_tokens=size * query_len,
        query_ends=uniform_query_ends(size, query_len, mask is not None),
        kv_lens=padded_decode_lens(kv_lens, size, query_len),
        block_table=block_table,
        slot_mapping=slot_mapping,
        block_size=block_size,
        mask=mask,
    )


def _check_rows(ok: np.ndarray, what: str, values: np.ndarray) -> None:
    if not ok.all():
        row = int(np.argmin(ok))
        raise PlanError(f"request {row} of the batch {what} (its value is {int(values[row])})")
