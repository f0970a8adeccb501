# SPDX-License-Identifier: Apache-2.0
"""Fused attention against a naive reference over random layouts, and the rules it enforces."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import pytest
import torch
import torch_npu
from hypothesis import strategies as st

from tests.device.ops.compare import FLOATS

ROUNDING = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
COMPRESSED = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


@pytest.fixture(scope="module")
def mask() -> torch.Tensor:
    return COMPRESSED.npu()


def naive(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query [rows, heads, D], key and value [tokens, kv_heads, D], seen [rows, tokens]."""
    rows, heads, _ = query.shape
    out, lse = torch.zeros(query.shape), torch.zeros(rows, heads, 1)
    for head in range(heads):
        k, v = (t[:, head // (heads // t.size(1))].float() for t in (key, value))
        for row in range(rows):
            scores = (k @ query[row, head].float()) * scale
            scores = scores.masked_fill(~seen[row], float("-inf"))
            lse[row, head] = scores.logsumexp(0)
            out[row, head] = torch.nan_to_num(scores.softmax(0), 0) @ v
    return out.to(query.dtype), lse


def causal(
    rows: int, tokens: int, shift: int, before: int | None = None, after: int = 0
) -> torch.Tensor:
    position = torch.arange(rows)[:, None] + shift
    token = torch.arange(tokens)[None]
    seen = token <= position + after
    return seen if before is None else seen & (token >= position - before)


class Paged:
    """Random sequences in a paged cache whose unused slots hold garbage."""

    def __init__(self, rows: list[int], tokens: list[int], heads: int, kv_heads: int, size: int,
                 block: int, dtype: torch.dtype, seed: int = 0) -> None:  # fmt: skip
        g = torch.Generator().manual_seed(seed)
        self.rows, self.tokens = rows, tokens
        self.heads, self.kv_heads, self.size, self.block = heads, kv_heads, size, block
        self.query = torch.randn(sum(rows), heads, size, generator=g).to(dtype)
        self.keys = [torch.randn(n, kv_heads, size, generator=g).to(dtype) for n in tokens]
        self.values = [torch.randn(n, kv_heads, size, generator=g).to(dtype) for n in tokens]
        width = max(1, max(math.ceil(n / block) for n in tokens))
        count = sum(math.ceil(n / block) for n in tokens) + 2
        order = torch.randperm(count, generator=g).tolist()
        self.key_cache = torch.full((count, block, kv_heads, size), 1e4, dtype=dtype)
        self.value_cache = self.key_cache.clone()
        self.table = torch.full((len(tokens), width), 2**30, dtype=torch.int32)
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            for j in range(math.ceil(len(key) / block)):
                place = order.pop()
                self.table[i, j] = place
                part = slice(j * block, (j + 1) * block)
                self.key_cache[place, : len(key[part])] = key[part]
                self.value_cache[place, : len(key[part])] = value[part]

    def arguments(self, mask: torch.Tensor | None, **changes: Any) -> dict[str, Any]:
        """Keyword arguments of the second version of the operator."""
        heads_first = changes.pop("heads_first", False)

        def cache(t: torch.Tensor) -> torch.Tensor:
            t = t.npu()
            return t.transpose(1, 2).contiguous() if heads_first else t.flatten(2)

        cumulative = torch.tensor(self.rows).cumsum(0).tolist()
        given = {
            "query": self.query.npu(),
            "key": cache(self.key_cache),
            "value": cache(self.value_cache),
            "block_table": self.table.npu(),
            "actual_seq_qlen": cumulative,
            "actual_seq_kvlen": list(self.tokens),
            "block_size": self.block,
            "input_layout": "TND",
            "num_query_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "softmax_scale": self.size**-0.5,
            "sparse_mode": 0 if mask is None else 3,
            "atten_mask": mask,
        }
        return given | changes

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        parts, first = [], 0
        for rows, key, value in zip(self.rows, self.keys, self.values, strict=True):
            seen = causal(rows, len(key), len(key) - rows)
            query = self.query[first : first + rows]
            parts.append(naive(query, key, value, seen, self.size**-0.5))
            first += rows
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def call(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    rest = dict(arguments)
    return torch_npu.npu_fused_infer_attention_score_v2(
        rest.pop("query"), rest.pop("key"), rest.pop("value"), **rest
    )


@st.composite
def paged_cases(draw: st.DrawFn) -> Paged:
    batch = draw(st.integers(1, 4))
    tokens = draw(st.lists(st.integers(1, 70), min_size=batch, max_size=batch))
    rows = [draw(st.integers(0, min(n, 9))) for n in tokens]
    hypothesis.assume(sum(rows) > 0)
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return Paged(
        rows, tokens, kv_heads * draw(st.sampled_from([1, 2, 4])), kv_heads,
        draw(st.sampled_from([16, 32, 64])), draw(st.sampled_from([16, 32])), torch.float32,
        draw(st.integers(0, 2**16)),
    )  # fmt: skip


@hypothesis.settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(case=paged_cases(), heads_first=st.booleans())
def test_paged_causal(mask: torch.Tensor, case: Paged, heads_first: bool) -> None:
    out, lse = call(case.arguments(mask, heads_first=heads_first, return_softmax_lse=True))
    want, want_lse = case.expected()
    torch.testing.assert_close(out.cpu(), want, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(lse.cpu(), want_lse, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_decode_and_prefill_by_dtype(mask: torch.Tensor, dtype: torch.dtype) -> None:
    for rows, tokens in (([1, 1, 1], [5, 33, 16]), ([7, 1, 20], [7, 40, 20])):
        case = Paged(rows, tokens, 4, 2, 64, 16, dtype)
        tolerance = ROUNDING[dtype]
        torch.testing.assert_close(
            call(case.arguments(mask))[0].cpu(), case.expected()[0], rtol=tolerance, atol=tolerance
        )


def test_first_version_of_the_operator(mask: torch.Tensor) -> None:
    case = Paged([1, 3, 2], [5, 17, 9], 4, 2, 32, 16, torch.float32)
    a = case.arguments(mask)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        a["query"], a["key"], a["value"], atten_mask=mask, block_table=a["block_table"],
        input_layout="TND", block_size=16, actual_seq_lengths=a["actual_seq_qlen"],
        actual_seq_lengths_kv=a["actual_seq_kvlen"], num_heads=4, num_key_value_heads=2,
        scale=a["softmax_scale"], sparse_mode=3,
    )  # fmt: skip
    torch.testing.assert_close(out.cpu(), case.expected()[0], rtol=2e-5, atol=2e-5)


def to_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """[batch, rows, heads, D] into a padded layout."""
    return {"BSND": x, "BNSD": x.transpose(1, 2).contiguous(), "BSH": x.flatten(2)}[layout]


@pytest.mark.parametrize("sparse_mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_padded_layouts_and_masks(mask: torch.Tensor, layout: str, sparse_mode: int) -> None:
    g = torch.Generator().manual_seed(1)
    batch, rows, tokens, heads, kv_heads, size = 2, 6, 9, 4, 2, 16
    query = torch.randn(batch, rows, heads, size, generator=g)
    key, value = (torch.randn(batch, tokens, kv_heads, size, generator=g) for _ in range(2))
    full = torch.rand(batch, rows, tokens, generator=g) < 0.4
    full[..., 0] = False
    seen = {
        0: ~full,
        1: ~full,
        2: causal(rows, tokens, 0).expand(batch, -1, -1),
        3: causal(rows, tokens, tokens - rows).expand(batch, -1, -1),
        4: causal(rows, tokens, tokens - rows, before=3, after=1).expand(batch, -1, -1),
    }[sparse_mode]
    out, lse = torch_npu.npu_fused_infer_attention_score_v2(
        *(to_layout(t, layout).npu() for t in (query, key, value)),
        atten_mask=full[:, None].npu() if sparse_mode < 2 else mask,
        input_layout=layout, num_query_heads=heads, num_key_value_heads=kv_heads,
        softmax_scale=0.3, sparse_mode=sparse_mode, return_softmax_lse=True,
        **({"pre_tokens": 3, "next_tokens": 1} if sparse_mode == 4 else {}),
    )  # fmt: skip
    for i in range(batch):
        want, want_lse = naive(query[i], key[i], value[i], seen[i], 0.3)
        got = out.cpu()[i] if layout != "BNSD" else out.cpu()[i].transpose(0, 1)
        torch.testing.assert_close(got.reshape(want.shape), want, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(lse.cpu()[i].transpose(0, 1), want_lse, rtol=2e-5, atol=2e-5)


def test_without_a_mask_all_is_seen() -> None:
    case = Paged([2, 1], [9, 17], 2, 1, 16, 16, torch.float32)
    out, _ = call(case.arguments(None))
    for i, first in enumerate((0, 2)):
        rows, tokens = case.rows[i], case.tokens[i]
        want, _ = naive(case.query[first : first + rows], case.keys[i], case.values[i],
                        torch.ones(rows, tokens, dtype=torch.bool), 0.25)  # fmt: skip
        torch.testing.assert_close(out.cpu()[first : first + rows], want, rtol=2e-5, atol=2e-5)


def test_packed_keys_without_a_block_table(mask: torch.Tensor) -> None:
    case = Paged([2, 3], [9, 17], 4, 2, 16, 16, torch.float32)
    a = case.arguments(mask, block_table=None, block_size=0, actual_seq_kvlen=[9, 26])
    a["key"], a["value"] = torch.cat(case.keys).npu(), torch.cat(case.values).npu()
    torch.testing.assert_close(call(a)[0].cpu(), case.expected()[0], rtol=2e-5, atol=2e-5)


REFUSED = {
    "descending": ({"actual_seq_qlen": [4, 3, 6]}, "cumulative"),
    "not T": ({"actual_seq_qlen": [1, 4, 5]}, "the last value of actual_seq_qlen is T"),
    "kv count": ({"actual_seq_kvlen": [5, 17]}, "actual_seq_kvlen has one value for each sequence"),
    "negative": ({"actual_seq_kvlen": [5, -1, 9]}, "is not negative"),
    "table width": ({"actual_seq_kvlen": [5, 33, 9]}, "n not below the blocks of the longest"),
    "block size": ({"block_size": 8}, "block_size is a multiple of 16"),
    "other block size": (
        {"block_size": 32},
        "block_size is a multiple of 16 .* and is the cache's",
    ),
    "heads": ({"num_query_heads": 3}, "num_query_heads is a multiple"),
    "kv heads": ({"num_key_value_heads": 4}, "query and key have one head size"),
    "no mask": ({"atten_mask": None}, "need atten_mask of shape"),
    "sparse mode": ({"sparse_mode": 7}, "sparse_mode 7 is not emulated"),
    "layout": ({"input_layout": "XYZ"}, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rules_of_the_call(mask: torch.Tensor, name: str) -> None:
    change, message = REFUSED[name]
    case = Paged([1, 3, 2], [5, 17, 9], 4, 2, 32, 16, torch.float32)
    with pytest.raises(RuntimeError, match=message):
        call(case.arguments(mask, **change))


def test_rules_of_the_tensors(mask: torch.Tensor) -> None:
    case = Paged([1, 3, 2], [5, 17, 9], 4, 2, 32, 16, torch.float32)
    good = case.arguments(mask)
    wrong = {
        "a cache may not be a strided view": {"key": torch.stack([good["key"]] * 2, 1)[:, 0]},
        "have one dtype": {"value": good["value"].half()},
        "block_table is int32": {"block_table": good["block_table"].long()},
        "atten_mask is bool": {"atten_mask": mask.float()},
        r"a paged cache is": {"key": good["key"].view(*good["key"].shape[:2], 2, 32),
                              "value": good["value"].view(*good["key"].shape[:2], 2, 32)},
    }  # fmt: skip
    for message, change in wrong.items():
        with pytest.raises(RuntimeError, match="aclnnFusedInferAttentionScoreV4: .*" + message):
            call(good | change)
    # The device is as it was: nothing was queued.
    torch.testing.assert_close(call(good)[0].cpu(), case.expected()[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention(dtype: torch.dtype, is_causal: bool) -> None:
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 4, 7, 16, generator=g).to(dtype) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    tolerance = ROUNDING[dtype]
    torch.testing.assert_close(
        attend(q.npu(), k.npu(), v.npu(), is_causal=is_causal).cpu(),
        attend(q, k, v, is_causal=is_causal), rtol=tolerance, atol=tolerance,
    )  # fmt: skip


def test_fusion_attention_with_its_statistics() -> None:
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 5, 16, generator=g) for _ in range(3))
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    out, row_max, row_sum, *_ = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), 2, "BNSD", atten_mask=hidden.npu(), scale=0.25
    )
    want, lse = naive(*(t[0].transpose(0, 1) for t in (q, k, v)), ~hidden, 0.25)
    torch.testing.assert_close(out.cpu()[0].transpose(0, 1), want, rtol=2e-5, atol=2e-5)
    got = row_max.cpu()[0, ..., :1] + row_sum.cpu()[0, ..., :1].log()
    torch.testing.assert_close(got.transpose(0, 1), lse, rtol=2e-5, atol=2e-5)
