# SPDX-License-Identifier: Apache-2.0
"""Logits processors of cores that call them with single arguments.

Reason, core versions and when this goes: `differences.LOGITS_CONTEXT`. Undo with `uninstall()`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from vllm_ascend_mrv2.compat.differences import LOGITS_CONTEXT

_originals: list[tuple[Any, str, Any]] = []


def core_has_one() -> bool:
    """Whether core hands processors one context."""
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState

    return hasattr(LogitBiasState, "apply")


@LOGITS_CONTEXT.serves
def install(
    apply_bias: Callable[[Any, Any, Any], Any], apply_thinking: Callable[[Any, Any, Any], None]
) -> None:
    """Bind ours where those cores call theirs. Idempotent.

    Both take the state, the logits and a context with the names of core 0.31.
    """
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState

    if _originals:
        return

    def apply_logit_bias(state: Any, logits: Any, rows: Any, rows_np: Any, pos: Any) -> None:
        apply_bias(
            state,
            logits,
            SimpleNamespace(expanded_idx_mapping=rows, idx_mapping_np=rows_np, pos=pos),
        )

    def apply(
        state: Any,
        logits: Any,
        expanded: Any,
        rows: Any,
        rows_np: Any,
        input_ids: Any,
        local_pos: Any,
    ) -> None:
        # The scheduler's count of the step before, and this step's token.
        bound = state.req_states.num_computed_tokens_np[rows_np] + 1
        apply_thinking(
            state,
            logits,
            SimpleNamespace(
                expanded_idx_mapping=expanded,
                idx_mapping=rows,
                idx_mapping_np=rows_np,
                input_ids=input_ids,
                expanded_local_pos=local_pos,
                seq_lens_upper_bound_np=bound,
            ),
        )

    for owner, name, ours in (
        (LogitBiasState, "apply_logit_bias", apply_logit_bias),
        (ThinkingBudgetState, "apply", apply),
    ):
        _originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, ours)


@LOGITS_CONTEXT.serves
def uninstall() -> None:
    """Give core's methods back."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)
