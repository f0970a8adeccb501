# SPDX-License-Identifier: Apache-2.0
"""Where and when the host data of a step is copied: the choices, and which of them may be taken.

How data is copied is staging.py's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_ascend_mrv2 import envs

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class InputCopyPolicy(enum.Enum):
    """Where and when a step's host data is copied."""

    ON_PREPARE_STREAM = "prepare"  # on the input stream, when the step is prepared
    ON_READ = "read"  # on the compute stream, when it is read


@dataclass(frozen=True)
class InputCopyVerdict:
    """The policy of a start-up, and why."""

    policy: InputCopyPolicy
    reason: str


def decide_input_copy(
    wanted: InputCopyPolicy, graphs: bool, async_scheduling: bool
) -> InputCopyVerdict:
    """Check the wanted policy. Raises ValueError where it could read the next batch's data."""
    if wanted is InputCopyPolicy.ON_READ and graphs and async_scheduling:
        raise ValueError(
            "copying inputs when they are read is refused with graphs and async scheduling: the "
            "host may already have written the next batch when a replay reads its inputs. Leave "
            "VLLM_ASCEND_MRV2_INPUT_COPY unset, or turn one of the two off."
        )
    if wanted is InputCopyPolicy.ON_READ:
        return InputCopyVerdict(wanted, f"{envs.INPUT_COPY.name}=read; each copy drains the stream")
    return InputCopyVerdict(wanted, "one copy per step, which waits for no computation")


def input_copy_of(config: VllmConfig) -> InputCopyVerdict:
    """The verdict on a finished VllmConfig. Raises ValueError as `decide_input_copy`."""
    return decide_input_copy(
        InputCopyPolicy(envs.INPUT_COPY.read()),
        graphs=config.compilation_config.cudagraph_mode.name != "NONE",
        async_scheduling=bool(config.scheduler_config.async_scheduling),
    )
