# SPDX-License-Identifier: Apache-2.0
"""What verifying drafts by upper bounds of the lengths asks of the KV cache: finite numbers.

The mask (attention/key_mask.py) gives a hidden key the weight 0, and 0 times NaN is NaN. So each
block is zeroed when a request gets it: whatever a request can touch is its own, computed or zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.core.sched.output import SchedulerOutput

from vllm_ascend_mrv2 import envs
from vllm_ascend_mrv2.kernels import upload


def hides_unverified() -> bool:
    """Whether the user asked for it."""
    return envs.SPEC_LENGTHS.read() == "masked"


def new_blocks(scheduler_output: SchedulerOutput, block_sizes: Sequence[int]) -> list[int]:
    """Blocks that a request has got in this step and nothing was computed in.

    block_sizes: tokens, of each KV cache group. A block that is computed in part, from the prefix
    cache, is not new.
    """
    of_new = (
        ids[-(-request.num_computed_tokens // size) :]
        for request in scheduler_output.scheduled_new_reqs
        for ids, size in zip(request.block_ids, block_sizes, strict=True)
    )
    of_running = (
        ids
        for groups in scheduler_output.scheduled_cached_reqs.new_block_ids
        if groups is not None
        for ids in groups
    )
    return list(chain.from_iterable(chain(of_new, of_running)))


def zero_blocks(caches: Sequence[torch.Tensor], blocks: list[int]) -> None:
    """Zero `blocks` of every layer before what is launched after the next flush.

    caches: of each layer, [num_blocks, 2, block_size, ...], K and V contiguous each.
    """
    if not blocks:
        return
    wanted: npt.NDArray[np.int64] = np.asarray(blocks, np.int64)
    staged = upload.stage(wanted, caches[0].device)

    def zero() -> None:
        for cache in caches:
            for half in cache.unbind(1):
                half.index_fill_(0, staged, 0.0)

    upload.after(zero)
