# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel that draws as core's rejection kernel draws. For the oracle's process."""

from __future__ import annotations

from vllm.triton_utils import tl, triton
from vllm.v1.worker.gpu.sample.gumbel import tl_rand32


@triton.jit
def draw(out_ptr, seed_ptr, pos_ptr):
    i = tl.program_id(0)
    value = tl_rand32(tl.load(seed_ptr + i), tl.load(pos_ptr + i), includes_zero=False)
    tl.store(out_ptr + i, value)
