# SPDX-License-Identifier: Apache-2.0
"""Whether a start-up asks for core's older Ray executor, which newer cores do not have.

Reason, core versions and when this goes: `differences.RAY_EXECUTOR`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

SETTING = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"


def older_is_asked_for(environ: Mapping[str, str] = os.environ) -> bool:
    """Where core has one executor, the variable is one that nothing reads, and harmless."""
    from vllm import envs

    return hasattr(envs, SETTING) and environ.get(SETTING) == "0"
