# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings against the formula."""

from __future__ import annotations

import pytest
import torch
import torch_npu

from tests.device.ops.compare import FLOATS, values

ROUNDING = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleave: bool
) -> torch.Tensor:
    """Each pair times a rotation; cos and sin [..., D] hold each angle for both of its elements."""
    wide = x.float()
    if interleave:
        other = torch.stack([-wide[..., 1::2], wide[..., ::2]], -1).flatten(-2)
    else:
        half = x.size(-1) // 2
        other = torch.cat([-wide[..., half:], wide[..., :half]], -1)
    return (wide * cos.float() + other * sin.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul(mode: str, dtype: torch.dtype) -> None:
    x, cos, sin = (
        values(dtype, 2, 3, 4, 8),
        values(dtype, 1, 3, 1, 8, seed=1),
        values(dtype, 1, 3, 1, 8, seed=2),
    )
    got = torch_npu.npu_rotary_mul(x.npu(), cos.npu(), sin.npu(), rotary_mode=mode)
    tolerance = ROUNDING[dtype]
    torch.testing.assert_close(
        got.cpu(), rotated(x, cos, sin, mode == "interleave"), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_apply_rotary_pos_emb_writes_query_and_key(dtype: torch.dtype) -> None:
    query, key = values(dtype, 1, 5, 6, 128), values(dtype, 1, 5, 2, 128, seed=1)
    cos, sin = values(dtype, 1, 5, 1, 128, seed=2), values(dtype, 1, 5, 1, 128, seed=3)
    got_query, got_key = torch_npu.npu_apply_rotary_pos_emb(
        query.npu(), key.npu(), cos.npu(), sin.npu()
    )
    tolerance = ROUNDING[dtype]
    for got, x in ((got_query, query), (got_key, key)):
        torch.testing.assert_close(
            got.cpu(), rotated(x, cos, sin, False), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary", [8, 4])
def test_by_position(neox: bool, rotary: int) -> None:
    tokens, heads, kv_heads, size = 5, 4, 2, 8
    query, key = (
        values(torch.float32, tokens, heads * size),
        values(torch.float32, tokens, kv_heads * size, seed=1),
    )
    cache = values(torch.float32, 16, rotary, seed=2)
    positions = torch.tensor([0, 3, 15, 3, 1])
    got = torch_npu.npu_mrope(
        positions.npu(), query.npu(), key.npu(), cache.npu(), size, mrope_section=[0, 0, 0],
        rotary_mode="half" if neox else "interleave",
    )  # fmt: skip
    cos, sin = cache[positions].chunk(2, -1)
    spread = (lambda t: torch.cat([t, t], -1)) if neox else (lambda t: t.repeat_interleave(2, -1))
    for out, x in zip(got, (query, key), strict=True):
        want = x.view(tokens, -1, size).clone()
        want[..., :rotary] = rotated(
            want[..., :rotary], spread(cos)[:, None], spread(sin)[:, None], not neox
        )
        torch.testing.assert_close(out.cpu(), want.view_as(x), rtol=1e-6, atol=1e-6)


def test_by_three_positions() -> None:
    tokens, size = 5, 8
    query = values(torch.float32, tokens, 2 * size)
    cache = values(torch.float32, 16, size, seed=2)
    positions = torch.stack(
        [torch.arange(tokens), torch.arange(tokens) + 3, torch.arange(tokens) + 7]
    )
    got, _ = torch_npu.npu_mrope(
        positions.npu(), query.npu(), query.npu(), cache.npu(), size, mrope_section=[1, 1, 2]
    )
    cos, sin = cache[positions].chunk(2, -1)
    axis = [0, 1, 2, 2]
    cos, sin = (torch.stack([t[a, :, i] for i, a in enumerate(axis)], -1) for t in (cos, sin))
    cos, sin = (torch.cat([t, t], -1)[:, None] for t in (cos, sin))
    want = rotated(query.view(tokens, 2, size), cos, sin, False)
    torch.testing.assert_close(got.cpu(), want.view_as(query), rtol=1e-6, atol=1e-6)


def test_wrong_tables_fail_at_the_call() -> None:
    x, cos = values(torch.float32, 2, 3, 4, 8).npu(), values(torch.float32, 1, 3, 1, 4).npu()
    with pytest.raises(
        RuntimeError, match="aclnnRotaryPositionEmbedding: x has head size 8 but cos"
    ):
        torch_npu.npu_rotary_mul(x, cos, cos)
