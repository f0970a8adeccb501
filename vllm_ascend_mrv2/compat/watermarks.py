# SPDX-License-Identifier: Apache-2.0
"""Whether core's watermarking is the one that is served here, and what to leave out where not.

Reason, core versions and when this goes: `differences.WATERMARKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

_KERNELS = "vllm.v1.worker.gpu.sample.watermark."


@cache
def core_is_known() -> bool:
    """Whether core's kernels take the arguments that the replacements have."""
    from vllm.v1.worker.gpu.sample import watermark

    has_drafts = hasattr(watermark, "draft_watermarking_mask")
    return has_drafts and not hasattr(watermark, "draft_philox_gumbel_sample")


def of_this_core(kernels: Mapping[str, Callable[..., None]]) -> dict[str, Callable[..., None]]:
    """The kernels without those of watermarking, where core has others."""
    known = core_is_known()
    return {name: ours for name, ours in kernels.items() if known or _KERNELS not in name}
