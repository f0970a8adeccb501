# SPDX-License-Identifier: Apache-2.0
"""Which batch row a flat token belongs to, without asking the host.

A batch of rows of different lengths is one flat token axis plus cumulative starts
(`query_start_loc`, `cu_num_logits`). Nothing here knows what a token is.
"""

from __future__ import annotations

import torch

from vllm_ascend_mrv2.kernels import constants


def rows_of(starts: torch.Tensor, num_rows: int, num_tokens: int) -> torch.Tensor:
    """Row of each flat token: [num_tokens] int64 in 0..num_rows-1.

    starts: [>= num_rows + 1] int32, non-decreasing, starts[0] == 0. Tokens from starts[num_rows] on
    belong to no row; they get the last one, and the caller masks them (see `in_batch`).
    """
    if num_rows == 1:
        return constants.zeros(num_tokens, starts.device)
    tokens = constants.arange(num_tokens, starts.device, starts.dtype)
    return torch.searchsorted(starts[1:num_rows], tokens, right=True)


def in_batch(starts: torch.Tensor, num_rows: int, num_tokens: int) -> torch.Tensor:
    """[num_tokens] bool: the flat token belongs to one of the first `num_rows` rows."""
    tokens = constants.arange(num_tokens, starts.device, starts.dtype)
    return tokens < starts[num_rows]


def lengths(starts: torch.Tensor, num_rows: int) -> torch.Tensor:
    """[num_rows] of starts' dtype: tokens per row."""
    return starts[1 : num_rows + 1] - starts[:num_rows]
