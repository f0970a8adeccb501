# SPDX-License-Identifier: Apache-2.0
"""kernels/sample/thinking_budget.py against core's kernels, step after step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.kernel_check import KernelCheck, assert_same

CORE = "vllm.v1.worker.gpu.sample.thinking_budget"
ROWS, VOCAB = 4, 6
CACHES = ("cached_last_start", "cached_last_end", "cached_scan_pos")
markers = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@given(
    start=markers,
    natural_end=markers,
    end=markers,
    case=st.integers(0, 2**32 - 1),
    long=st.booleans(),
    bound_by_prompt=st.booleans(),
    max_drafts=st.sampled_from([0, 5]),
)
def test_forced_tokens_and_memory(
    check: KernelCheck,
    start: list[int],
    natural_end: list[int],
    end: list[int],
    case: int,
    long: bool,
    bound_by_prompt: bool,
    max_drafts: int,
) -> None:
    """Sequences grow by a token a step; a small alphabet makes markers frequent, also in drafts.

    Long ones span several of core's blocks and hold few markers, so that a first scan stops early.
    A sequence is as long as its step's bound says, or as what its request came with.
    """
    from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState

    rng = np.random.default_rng(case)
    width = 3000 if long else 30
    low = 3 if long else 0
    tokens = rng.integers(low, VOCAB, (ROWS, width))
    if long:
        for _ in range(3):
            marker = [start, natural_end][rng.integers(2)]
            row, at = rng.integers(ROWS), rng.integers(0, width - 8)
            tokens[row, at : at + len(marker)] = marker
    all_token_ids = torch.from_numpy(tokens.astype(np.int32))
    total_len = torch.from_numpy(rng.integers(0, width - 4, ROWS).astype(np.int32))
    budget = torch.from_numpy(rng.choice(np.int32([-1, 0, 3, 2000]), ROWS))
    mapping = torch.from_numpy(rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)])
    drafts = rng.integers(0, max_drafts + 1, len(mapping))
    expanded = mapping.repeat_interleave(torch.from_numpy(drafts) + 1)
    local_pos = torch.from_numpy(
        np.concatenate([np.arange(d + 1) for d in drafts]).astype(np.int32)
    )
    input_ids = torch.from_numpy(rng.integers(0, VOCAB, len(expanded)).astype(np.int32))
    marker_tensors = [torch.tensor(m, dtype=torch.int32) for m in (start, natural_end, end)]
    core_caches = [torch.full((ROWS,), value, dtype=torch.int32) for value in (-1, -1, 0)]
    table = SimpleNamespace
    bound, too_small = total_len.numpy() + 4, np.ones(ROWS, np.int32)
    state = SimpleNamespace(
        enabled=True,
        use_thinking_budget=np.ones(ROWS, bool),
        thinking_token_budget=table(gpu=check.place(budget)),
        req_states=table(
            all_token_ids=table(gpu=check.place(all_token_ids)),
            total_len=table(gpu=check.place(total_len.clone())),
            prefill_len=table(np=bound if bound_by_prompt else too_small),
        ),
        reasoning_start_token_ids=check.place(marker_tensors[0]),
        natural_reasoning_end_token_ids=check.place(marker_tensors[1]),
        reasoning_end_token_ids=check.place(marker_tensors[2]),
        **{
            name: check.place(cache.clone())
            for name, cache in zip(CACHES, core_caches, strict=True)
        },
    )
    context = SimpleNamespace(
        idx_mapping_np=mapping.numpy(),
        idx_mapping=check.place(mapping),
        expanded_idx_mapping=check.place(expanded),
        input_ids=check.place(input_ids),
        expanded_local_pos=check.place(local_pos),
        seq_lens_upper_bound_np=(too_small if bound_by_prompt else bound)[mapping.numpy()],
    )
    for _ in range(3):
        logits = torch.from_numpy(rng.standard_normal((len(expanded), VOCAB), dtype=np.float32))
        ours = check.place(logits.clone())
        ThinkingBudgetState.apply(state, ours, context)
        _, args = check.oracle.call(
            f"{CORE}.apply_thinking_budget",
            logits,
            mapping,
            expanded,
            budget,
            all_token_ids,
            total_len,
            input_ids,
            local_pos,
            *core_caches,
            *marker_tensors,
        )
        core_caches = list(args[8:11])
        assert_same(ours, args[0], "logits", 0, 0)
        for name, cache in zip(CACHES, core_caches, strict=True):
            assert_same(getattr(state, name), cache, name, 0, 0)
        total_len += 1
        state.req_states.total_len.gpu.add_(1)


def test_reset_forgets_the_request(check: KernelCheck, host_tables_on: None) -> None:
    from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState

    reasoning = SimpleNamespace(
        reasoning_start_token_ids=[1],
        reasoning_end_token_ids=[2],
        natural_reasoning_end_token_ids=[2],
    )
    request_state = SimpleNamespace(max_num_reqs=3, device=check.device)
    state = ThinkingBudgetState(request_state, reasoning)
    for name in CACHES:
        getattr(state, name).fill_(7)
    assert state.add_request(1, SimpleNamespace(thinking_token_budget=5))
    state.apply_staged_writes()
    assert state.cached_last_start.tolist() == [7, -1, 7]
    assert state.cached_last_end.tolist() == [7, -1, 7]
    assert state.cached_scan_pos.tolist() == [7, 0, 7]
    assert state.thinking_token_budget.gpu.tolist() == [-1, 5, -1]
