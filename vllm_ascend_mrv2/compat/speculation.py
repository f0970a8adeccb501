# SPDX-License-Identifier: Apache-2.0
"""Whether core's speculators are those that are served here, and what to leave out where not.

Reason, core versions and when this goes: `differences.SPECULATION`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec

_SPEC_DECODE = "vllm.v1.worker.gpu.spec_decode"


@cache
def core_is_known() -> bool:
    """Whether core has the speculators and the verification that the replacements are for."""
    if find_spec(f"{_SPEC_DECODE}.ngram") is None:
        return False
    from vllm.v1.worker.gpu import input_batch

    # From 0.33 on the update of a request's state also keeps its next drafts.
    return "draft_tokens" not in inspect.signature(input_batch.post_update).parameters


def of_this_core(kernels: Mapping[str, Callable[..., None]]) -> dict[str, Callable[..., None]]:
    """The kernels without those of speculation, where core has others."""
    known = core_is_known()
    return {name: ours for name, ours in kernels.items() if known or _SPEC_DECODE not in name}
