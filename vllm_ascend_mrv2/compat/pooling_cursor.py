# SPDX-License-Identifier: Apache-2.0
"""Tells a pooler where requests begin and end by a copy that waits, where no device tensor does.

Why: `PoolingMetadata.build_pooling_cursor` copies these numbers with `non_blocking=True`, also from
memory that is not pinned, unless its caller has them on the device; core's profile of a pooler's
memory has not.
Core versions: 0.30 to 0.33. Goes when core waits for copies from memory that is not pinned. Undo
with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_original: Callable[..., None] | None = None


def install() -> None:
    """Hand the numbers over on the device. Idempotent. Only for a start that pools."""
    global _original
    if _original is not None:
        return
    from vllm.v1.pool.metadata import PoolingMetadata

    original = PoolingMetadata.build_pooling_cursor

    def build_pooling_cursor(
        self: Any,
        num_scheduled_tokens_np: npt.NDArray[Any],
        seq_lens_cpu: torch.Tensor,
        device: torch.device,
        query_start_loc_gpu: torch.Tensor | None = None,
    ) -> None:
        if query_start_loc_gpu is None:
            starts = np.zeros(len(num_scheduled_tokens_np) + 1, np.int64)
            np.cumsum(num_scheduled_tokens_np, out=starts[1:])
            query_start_loc_gpu = torch.from_numpy(starts).to(device)
        original(self, num_scheduled_tokens_np, seq_lens_cpu, device, query_start_loc_gpu)

    PoolingMetadata.build_pooling_cursor = build_pooling_cursor
    _original = original


def uninstall() -> None:
    """Give core's own method back."""
    global _original
    if _original is None:
        return
    from vllm.v1.pool.metadata import PoolingMetadata

    PoolingMetadata.build_pooling_cursor = _original
    _original = None
