# SPDX-License-Identifier: Apache-2.0
"""kernels/model_states/prompt_embeds.py against core's kernel."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.kernel_cases import MAX_NUM_REQS, Batch, batches
from tests.helpers.kernel_check import KernelCheck, assert_same

HIDDEN_SIZE = 5

pytestmark = pytest.mark.usefixtures("host_tables_on")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(), with_mask=st.booleans())
def test_apply(check: KernelCheck, batch: Batch, with_mask: bool) -> None:
    from vllm.v1.worker.gpu.model_states.prompt_embeds import PromptEmbedsState

    state = PromptEmbedsState(MAX_NUM_REQS, HIDDEN_SIZE, torch.float32, check.device)
    embeds: list[torch.Tensor | None] = [None] * MAX_NUM_REQS
    masks: list[torch.Tensor | None] = [None] * MAX_NUM_REQS
    for row in range(MAX_NUM_REQS):
        if batch.rng.random() < 0.6:
            length = int(batch.prompt_len[row])
            embeds[row] = batch.floats(length, HIDDEN_SIZE)
            masks[row] = batch.ints(length, 2, torch.uint8) if with_mask else None
        state.add_request(
            row,
            SimpleNamespace(
                req_id=str(row), prompt_embeds=embeds[row], prompt_is_token_ids=masks[row]
            ),
        )
    state.apply_staged_writes()
    starts = batch.query_start_loc[: batch.num_reqs + 1]
    rows = batch.idx_mapping
    inputs = batch.floats(batch.num_tokens + 3, HIDDEN_SIZE)
    ours = check.place(inputs.clone())
    input_batch = SimpleNamespace(
        req_ids=[str(row) for row in rows.tolist()],
        num_reqs=batch.num_reqs,
        num_scheduled_tokens=starts.diff().numpy(),
        idx_mapping=check.place(rows),
        idx_mapping_np=rows.numpy(),
        query_start_loc=check.place(batch.query_start_loc),
        query_start_loc_np=batch.query_start_loc.numpy(),
        num_computed_prefill_tokens_np=torch.minimum(batch.num_computed_tokens, batch.prefill_len)[
            rows
        ].numpy(),
    )
    state.apply(input_batch, check.place(batch.num_computed_tokens), ours)
    wanted, _ = check.oracle.call(
        "tests.helpers.core_tables.apply_prompt_embeds",
        inputs,
        embeds,
        masks,
        rows,
        batch.query_start_loc,
        batch.num_computed_tokens,
        int(starts.diff().max()),
    )
    assert_same(ours, wanted, "inputs_embeds", 0, 0)
