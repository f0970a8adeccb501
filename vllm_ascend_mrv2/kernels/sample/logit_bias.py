# SPDX-License-Identifier: Apache-2.0
"""Allowed tokens, logit bias and minimum tokens of core's `v1/worker/gpu/sample/logit_bias.py`.

Replaced at the method that knows on the host what the batch asks for, so that what nobody asks for
costs nothing and token lists are as wide as the longest in the batch (core's tables: 1024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_ascend_mrv2.kernels import constants

if TYPE_CHECKING:  # not in every core: see compat/logits_context.py
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext


def apply(state: Any, logits: torch.Tensor, context: LogitsContext) -> torch.Tensor:
    """Core's `LogitBiasState.apply`: logits [n, vocab_size], changed in place and returned."""
    requests = context.idx_mapping_np
    if not state.use_logit_bias[requests].any():
        return logits
    rows = context.expanded_idx_mapping
    num_allowed = int(state.num_allowed_token_ids.np[requests].max())
    if num_allowed:
        keep_allowed(
            logits,
            state.allowed_token_ids.gpu[:, :num_allowed].index_select(0, rows),
            state.num_allowed_token_ids.gpu.index_select(0, rows),
        )
    num_biased = int(state.num_logit_bias.np[requests].max())
    if num_biased:
        add_bias(
            logits,
            state.logit_bias_token_ids.gpu[:, :num_biased].index_select(0, rows),
            state.logit_bias.gpu[:, :num_biased].index_select(0, rows),
            state.num_logit_bias.gpu.index_select(0, rows),
        )
    num_stops = int(state.num_stop_token_ids.np[requests].max())
    if num_stops:
        restore = state.restore_when_all_masked
        mask_stop_tokens(
            logits,
            state.stop_token_ids.gpu[:, :num_stops].index_select(0, rows),
            state.num_stop_token_ids.gpu.index_select(0, rows),
            too_short=context.pos + 1 < state.min_lens.gpu.index_select(0, rows),
            restore=restore.gpu.index_select(0, rows) if restore.np[requests].any() else None,
        )
    return logits


def _listed(token_ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[n, k] bool: the entry is one of its row's `counts`; the others are stale."""
    column = constants.arange(token_ids.shape[1], token_ids.device, torch.int32)
    return column < counts.unsqueeze(1)


def keep_allowed(logits: torch.Tensor, token_ids: torch.Tensor, counts: torch.Tensor) -> None:
    """-inf for tokens that are not listed, in rows that list any.

    logits: [n, vocab_size]; token_ids: [n, k] int32; counts: [n] int32.
    """
    vocab_size = logits.shape[1]
    # stale entries mark a column past the vocabulary
    where = token_ids.to(torch.int64).masked_fill_(~_listed(token_ids, counts), vocab_size)
    banned = (counts > 0).unsqueeze(1).repeat(1, vocab_size + 1)
    banned.scatter_(1, where, False)
    logits.masked_fill_(banned[:, :vocab_size], float("-inf"))


def add_bias(
    logits: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor, counts: torch.Tensor
) -> None:
    """Add each listed token's bias [n, k] float32; distinct tokens per row. Shapes as above."""
    listed = _listed(token_ids, counts)
    where = token_ids.to(torch.int64).mul_(listed)  # a stale entry adds 0 to token 0
    logits.scatter_add_(1, where, (bias * listed).to(logits.dtype))


def mask_stop_tokens(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    too_short: torch.Tensor,
    restore: torch.Tensor | None,
) -> None:
    """-inf for the listed tokens of rows that are too short to stop ([n] bool).

    restore: None, or [n] int32, non-zero for rows that must keep a finite token: where masking
    would leave none, their finite stop tokens stay. Other shapes as above.
    """
    # Stale entries stand for the row's first entry: a scatter that writes one value twice is safe,
    # and a row that lists nothing writes back what it read.
    first = token_ids[:, :1].expand_as(token_ids)
    where = torch.where(_listed(token_ids, counts), token_ids, first).to(torch.int64)
    before = logits.gather(1, where)
    masked = (too_short & (counts > 0)).unsqueeze(1)
    after = before.masked_fill(masked, float("-inf"))
    logits.scatter_(1, where, after)
    if restore is not None:
        dead = (logits.amax(-1) == float("-inf")) & (restore != 0)
        keep = masked & dead.unsqueeze(1) & before.isfinite()
        logits.scatter_(1, where, torch.where(keep, before, after))
