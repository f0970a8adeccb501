# SPDX-License-Identifier: Apache-2.0
"""Which keys the queries of a decode batch must not see, computed on the device.

With it, attention is exact for any host length that is an upper bound: what a rejected draft left
behind, and what was never written, lies beyond a query's position and is hidden. FIA reads the mask
in its explicit mode, one row for each query. Nothing here knows why lengths are only bounds.
"""

from __future__ import annotations

import torch


class KeyMask:
    """One mask for all layers of a KV cache group; graphs are captured with its memory."""

    def __init__(
        self, max_rows: int, query_len: int, capacity: int, device: torch.device | str
    ) -> None:
        """capacity: keys of the longest request, a whole number of blocks."""
        self._hidden = torch.ones(max_rows, 1, query_len, capacity, dtype=torch.bool, device=device)
        self._keys = torch.arange(capacity, dtype=torch.int64, device=device)

    @property
    def num_bytes(self) -> int:
        return self._hidden.numel()

    def of_rows(self, size: int) -> torch.Tensor:
        """As it is: [size, 1, query_len, capacity] bool, True for what is hidden."""
        return self._hidden[:size]

    def fill(self, positions: torch.Tensor) -> torch.Tensor:
        """The mask of queries at `positions` [size * query_len] int64, which see keys up to theirs.

        Waits for nothing; whatever attends by the mask must be launched after this.
        """
        query_len = self._hidden.shape[2]
        hidden = self.of_rows(positions.shape[0] // query_len)
        torch.gt(self._keys, positions.view(-1, 1, query_len, 1), out=hidden)
        return hidden
