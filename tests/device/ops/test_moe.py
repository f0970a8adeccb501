# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: gating, grouping by expert, grouped products, the weighted sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu

from tests.device.ops.compare import FLOATS, values

ROWS, HIDDEN, INNER, EXPERTS, TOP_K = 7, 16, 24, 6, 2
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def routing(**changes: Any) -> dict[str, Any]:
    """The keywords of a plain npu_moe_init_routing_v2."""
    return {
        "active_num": ROWS * TOP_K,
        "expert_num": EXPERTS,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [0, EXPERTS],
        "quant_mode": -1,
        "row_idx_type": 0,
        **changes,
    }


def grouped(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, **changes: Any) -> Any:
    keywords = {"split_item": 2, "group_type": 0, "group_list_type": 1, **changes}
    return torch_npu.npu_grouped_matmul([x], [weight], group_list=counts, **keywords)[0]


def chosen(seed: int = 5) -> torch.Tensor:
    """[ROWS, TOP_K] int32, two experts for each row; expert 3 is nobody's."""
    scores = torch.randn(ROWS, EXPERTS, generator=torch.Generator().manual_seed(seed))
    scores[:, 3] = -100
    return scores.topk(TOP_K).indices.int()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gating(dtype: torch.dtype) -> None:
    logits = values(dtype, ROWS, EXPERTS)
    scores, experts, rows = torch_npu.npu_moe_gating_top_k_softmax(logits.npu(), k=TOP_K)
    want = logits.float().softmax(-1).topk(TOP_K)
    assert torch.equal(experts.cpu(), want.indices.int())
    torch.testing.assert_close(scores.cpu(), want.values.to(dtype))
    assert torch.equal(rows.cpu(), torch.arange(ROWS * TOP_K).view(TOP_K, ROWS).t().int())
    finished = torch.arange(ROWS) == 2
    _, experts, _ = torch_npu.npu_moe_gating_top_k_softmax(logits.npu(), finished.npu(), k=TOP_K)
    want.indices[2] = EXPERTS
    assert torch.equal(experts.cpu(), want.indices.int())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("local", [(0, EXPERTS), (2, 5)], ids=["all", "some"])
def test_a_layer_of_experts(dtype: torch.dtype, local: tuple[int, int]) -> None:
    """Group, multiply, unpermute: the sum over the chosen experts of this range."""
    first, end = local
    x, experts = values(dtype, ROWS, HIDDEN), chosen()
    weight = values(dtype, EXPERTS, HIDDEN, INNER, seed=1)
    shares = values(dtype, ROWS, TOP_K, seed=2)
    expanded, row_index, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), **routing(active_expert_range=[first, end])
    )
    assert counts.cpu().tolist() == [int((experts == e).sum()) for e in range(first, end)]
    is_local = (experts >= first) & (experts < end)
    placed = int(is_local.sum())
    assert expanded[placed:].isnan().all()
    index = row_index.cpu().view(ROWS, TOP_K)
    assert torch.equal(index >= 0, is_local)
    assert torch.equal(expanded.cpu()[index[is_local].long()], x[is_local.nonzero()[:, 0]])
    out = grouped(expanded, weight[first:end].npu(), counts)
    assert out[placed:].isnan().all()
    out[placed:] = 0
    summed = torch_npu.npu_moe_token_unpermute(
        out, row_index.clamp_min(0), probs=(shares * is_local).npu()
    )
    want = torch.zeros(ROWS, INNER)
    for row in range(ROWS):
        for place, expert in enumerate(experts[row].tolist()):
            if first <= expert < end:
                want[row] += shares[row, place] * (x[row].float() @ weight[expert].float())
    tolerance = ROUNDING[dtype]
    torch.testing.assert_close(summed.float().cpu(), want, rtol=tolerance, atol=tolerance * 4)


def test_the_other_forms_of_indices_and_lists() -> None:
    x, experts = values(torch.float32, ROWS, HIDDEN), chosen()
    _, source, counts, _ = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), **routing(row_idx_type=1)
    )
    assert torch.equal(source.cpu(), experts.flatten().argsort(stable=True).int())
    weight, rows = values(torch.float32, EXPERTS, HIDDEN, INNER), x.repeat(TOP_K, 1).npu()
    by_counts = grouped(rows, weight.npu(), counts)
    transposed = weight.transpose(1, 2).contiguous().npu().transpose(1, 2)
    torch.testing.assert_close(by_counts, grouped(rows, transposed, counts))
    assert torch.equal(
        by_counts, grouped(rows, weight.npu(), counts.cumsum(0), group_list_type=0, split_item=3)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, e, w: torch_npu.npu_moe_init_routing_v2(x, e.long(), **routing()),
            "expert_idx",
        ),
        (
            lambda x, e, w: torch_npu.npu_moe_init_routing_v2(
                x, e, **routing(active_expert_range=[2, EXPERTS + 1])
            ),
            "an expert is below expert_num",
        ),
        (
            lambda x, e, w: torch_npu.npu_moe_init_routing_v2(x, e, **routing(active_num=3)),
            "active_num 3",
        ),
        (
            lambda x, e, w: grouped(x, w.half(), torch.ones(EXPERTS, dtype=torch.int64).npu()),
            "weight",
        ),
        (
            lambda x, e, w: grouped(x, w, torch.ones(2, dtype=torch.int64).npu()),
            "group_list has one value for each group",
        ),
    ],
)
def test_wrong_calls_fail_where_they_are_made(call: Any, message: str) -> None:
    x = values(torch.float32, ROWS, HIDDEN).npu()
    weight = values(torch.float32, EXPERTS, HIDDEN, INNER).npu()
    with pytest.raises(RuntimeError, match=message):
        call(x, chosen().npu(), weight)
