# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N803  (names are those of core's kernels, so that launches by keyword bind)
"""Temperature and Gumbel-max sampling of core's `v1/worker/gpu/sample/gumbel.py`.

The random stream is core's: murmur3 over (seed, position, token id), so that a seed gives the
tokens it gives in core. Integers are exact; the noise follows core's formula in float32 (or
float64).

How the hash stays cheap. One murmur3 round is h' = rotl13(h ^ mix(key)) * 5 + C. Rotation
distributes over xor, so with `state` = rotl13(h) and `rotated(key)` = rotl13(mix(key)) a round is
(state ^ rotated(key)) * 5 + C. `rotated` of a token id or of a position depends on nothing else:
it is one constant table per device. What is left per [n, vocab_size] element is one round and the
final avalanche. All of it is int32 arithmetic that wraps, on bits that core treats as uint32.
"""

from __future__ import annotations

import numpy as np
import torch

from vllm_ascend_mrv2.kernels import constants

_MASK = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593  # murmur3's key multipliers
_ROUND = 0xE6546B64  # murmur3's round constant
_AVALANCHE = (0x85EBCA6B, 0xC2B2AE35)
_KEY_BYTES = 16  # two seed words, the position and the token id
_HIGH_DOMAIN = 0x9E3779B9  # core's domain of the upper word of a 64-bit draw
_DRAFT_SALT = 1 << 30  # core's offset between a draft's noise and the target's
_SERIES_BELOW = 0.25
_ONE_MINUS_EPS = 5.960464477539063e-08  # 2**-24, core's floor under 1 - u
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
# Of [n, vocab_size] at once: 512 MiB for each float32 intermediate, of which there are a few. A
# step of 880 rows and 152064 tokens still is one piece.
_MAX_ELEMENTS = 1 << 27


def _signed(word: int) -> int:
    """A uint32 as the int32 with the same bits."""
    return word - (1 << 32) if word >= 1 << 31 else word


def apply_temperature(
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Divide logits [n, vocab_size] by their rows' temperature, in place; rows of 0 stay.

    expanded_idx_mapping: [n] int64; temperature: [max_num_reqs] float32.
    """
    temperature = temperature_ptr.index_select(0, expanded_idx_mapping_ptr)
    logits_ptr.div_(temperature.masked_fill_(temperature == 0.0, 1.0).unsqueeze(1))


# -- the hash --------------------------------------------------------------------------------------


def _shifted_right(word: torch.Tensor, shift: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """word >> shift, arithmetic. torch_npu brings a Python shift through pinned host memory."""
    amount = constants.scalar(shift, word.device, word.dtype)
    return torch.bitwise_right_shift(word, amount, out=out)


def _rotl(word: torch.Tensor, shift: int) -> torch.Tensor:
    low = _shifted_right(word, 32 - shift).bitwise_and_((1 << shift) - 1)
    return (word << shift).bitwise_or_(low)


def _rotated(key: torch.Tensor) -> torch.Tensor:
    """rotl13(mix(key)) of int32 keys."""
    return _rotl(_rotl(key * _signed(_C1), 15).mul_(_signed(_C2)), 13)


def _rotated_table(length: int, device: torch.device) -> torch.Tensor:
    """`_rotated` of 0, 1, 2, ..., [length] int32."""

    def make(capacity: int) -> torch.Tensor:
        return _rotated(torch.arange(capacity, dtype=torch.int32)).to(device)

    return constants.grown("murmur3 keys", length, torch.int32, device, make)


def _round(state: torch.Tensor, rotated_key: torch.Tensor) -> torch.Tensor:
    return (state ^ rotated_key).mul_(5).add_(_signed(_ROUND))


def _words(value: torch.Tensor) -> torch.Tensor:
    """Lower and upper 32 bits of int64s: [n] -> [n, 2] int32 (both host and device
    little-endian).
    """
    return value.contiguous().view(torch.int32).view(-1, 2)


def seed_state(seeds: torch.Tensor, domain: int = 0) -> torch.Tensor:
    """The state after both words of the seeds, [n] int32. seeds: [n] int64 on any device."""
    keys = _rotated(_words(seeds))
    start = ((domain << 13) | (domain >> 19)) & _MASK
    first = (keys[:, 0] ^ _signed(start)).mul_(5).add_(_signed(_ROUND))
    return _rotl(_round(_rotl(first, 13), keys[:, 1]), 13)


def _token_hash(row_state: torch.Tensor, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Upper and lower halves of the 32-bit hash of every token: two [n, vocab_size] int32 in
    0..65535.

    row_state: [n] int32, after seed and position.
    """
    table = _rotated_table(vocab_size, row_state.device)
    h = _round(row_state.unsqueeze(1), table.unsqueeze(0))
    spread = _shifted_right(h, 16).bitwise_and_(0xFFFF)
    h.bitwise_xor_(spread).bitwise_xor_(_KEY_BYTES).mul_(_signed(_AVALANCHE[0]))
    _shifted_right(h, 13, out=spread)
    h.bitwise_xor_(spread.bitwise_and_(0x7FFFF)).mul_(_signed(_AVALANCHE[1]))
    _shifted_right(h, 16, out=spread)
    high = spread.bitwise_and_(0xFFFF)
    return high, h.bitwise_xor_(high).bitwise_and_(0xFFFF)


# -- the noise -------------------------------------------------------------------------------------


def _exponential32(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Standard exponential draws -log(1 - u) in float32, u = (hash + 0.5) / 2**32 rounded once.

    Core's formula: below 0.25 the series of degree 8, above it the logarithm.
    """
    u = high.to(torch.float32).mul_(2.0**-16)
    u.add_(low.to(torch.float32).add_(0.5), alpha=2.0**-32)
    device = u.device

    def coefficient(k: int) -> torch.Tensor:
        return constants.scalar(1.0 / k, device, torch.float32)

    series = torch.add(coefficient(7), u, alpha=1.0 / 8.0)
    for k in range(6, 0, -1):
        series = torch.addcmul(coefficient(k), u, series)
    series.mul_(u)
    direct = (1.0 - u).clamp_min_(_ONE_MINUS_EPS).log_().neg_()
    return torch.where(u < _SERIES_BELOW, series, direct)


def _sample32(
    logits: torch.Tensor, row_state: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """argmax(logits + Gumbel noise), without noise in rows of temperature 0: [n] int64."""
    exponential = _exponential32(*_token_hash(row_state, logits.shape[1]))
    noisy = (temperature != 0.0).to(torch.float32).unsqueeze(1)
    return torch.addcmul(logits.float(), exponential.log_(), noisy, value=-1.0).argmax(-1)


def _sample64(
    logits: torch.Tensor,
    low_state: torch.Tensor,
    high_state: torch.Tensor,
    temperature: torch.Tensor,
) -> torch.Tensor:
    """The same in float64, from 53 bits of two hashes."""

    def unsigned(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        return high.to(torch.int64).mul_(1 << 16).add_(low)

    vocab_size = logits.shape[1]
    upper = unsigned(*_token_hash(high_state, vocab_size))
    lower = unsigned(*_token_hash(low_state, vocab_size))
    random53 = upper.mul_(1 << 21).add_(_shifted_right(lower, 11))
    u = random53.to(torch.float64).add_(0.5).mul_(2.0**-53).clamp_(max=_LARGEST_BELOW_ONE)
    noise = u.log_().neg_().log_().neg_()
    noisy = (temperature != 0.0).to(torch.float64).unsqueeze(1)
    return torch.addcmul(logits.to(torch.float64), noise, noisy).argmax(-1)


def sample_seeded(
    logits: torch.Tensor,
    seed_states: torch.Tensor,
    temperature: torch.Tensor,
    pos: torch.Tensor,
    max_pos: int,
) -> torch.Tensor:
    """Sampled tokens, [n] int64, from seed states that are known already (see `seed_state`).

    logits: [n, vocab_size], temperature applied; seed_states: [n] int32; temperature: [n] float32,
    0 for greedy rows; pos: [n] int64, all below max_pos (host).
    """
    table = _rotated_table(max(max_pos, logits.shape[1]), pos.device)
    row_state = _rotl(_round(seed_states, table.index_select(0, pos)), 13)
    return _sample32(logits, row_state, temperature)


def gumbel_sample(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    is_drafting: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
    logits_cache_source: torch.Tensor | None = None,
) -> torch.Tensor:
    """Core's `gumbel_sample`: sampled tokens, [n] int64.

    logits: [n, vocab_size]; expanded_idx_mapping: [n] int64, negative for rows without a request
    (greedy); temperature: [max_num_reqs] float32; seed: [max_num_reqs] int64; pos: [n] int64.
    logits_cache: [max_num_reqs, k, >= vocab_size], where the logits of each request are kept, or
    those of logits_cache_source, before temperature; logits_cache_col: their column, one for all or
    [n].
    """
    if logits_cache is not None:
        assert logits_cache_col is not None
        assert logits_cache.shape[-1] >= logits.shape[1], (
            f"a cache of {logits_cache.shape[-1]} logits is narrower than {logits.shape[1]}"
        )
        source = logits if logits_cache_source is None else logits_cache_source
        keep_logits(logits_cache, logits_cache_col, expanded_idx_mapping, source)
    size = max(1, _MAX_ELEMENTS // logits.shape[1])
    pieces = [
        _gumbel_sample(
            logits[begin : begin + size],
            expanded_idx_mapping[begin : begin + size],
            pos[begin : begin + size],
            temperature,
            seed,
            apply_temperature,
            is_drafting,
            use_fp64,
        )
        for begin in range(0, max(1, logits.shape[0]), size)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def keep_logits(
    cache: torch.Tensor, column: torch.Tensor, idx_mapping: torch.Tensor, logits: torch.Tensor
) -> None:
    """cache[idx_mapping, column] = logits, without the rows whose idx_mapping is negative.

    Such a row writes what another one writes, or, where all are such, what is there.
    """
    num_rows, vocab_size = logits.shape
    valid = idx_mapping >= 0
    row = constants.arange(num_rows, logits.device)
    stand_in = torch.where(valid, row, valid.to(torch.int32).argmax(0, keepdim=True))
    entry = torch.add(column.to(torch.int64), idx_mapping.clamp_min(0), alpha=cache.shape[1])
    entry = entry.index_select(0, stand_in)
    flat = cache.view(-1, cache.shape[2])[:, :vocab_size]
    kept = torch.where(valid.any(), logits.index_select(0, stand_in), flat.index_select(0, entry))
    flat[entry] = kept


def _gumbel_sample(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    pos: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    apply_temperature: bool,
    is_drafting: bool,
    use_fp64: bool,
) -> torch.Tensor:
    """`gumbel_sample` of as many rows as memory allows."""
    rows = expanded_idx_mapping.clamp_min(0)
    temperatures = temperature.index_select(0, rows) * (expanded_idx_mapping >= 0)
    if apply_temperature:
        divisor = temperatures.masked_fill(temperatures == 0.0, 1.0)
        logits = logits.float() / divisor.unsqueeze(1)
    if is_drafting:
        pos = pos + _DRAFT_SALT
    seeds = seed.index_select(0, rows)
    position = _rotated(_words(pos.to(torch.int64))[:, 0])

    def row_state(domain: int) -> torch.Tensor:
        return _rotl(_round(seed_state(seeds, domain), position), 13)

    if use_fp64:
        return _sample64(logits, row_state(0), row_state(_HIGH_DOMAIN), temperatures)
    return _sample32(logits, row_state(0), temperatures)


def uniform_bits(seed: int, pos: int, vocab_size: int) -> np.ndarray:
    """Core's 32-bit hash of tokens 0..vocab_size-1 by plain uint64 arithmetic, [vocab_size] uint32.

    Slow and independent of the formulation above: what a device is checked against.
    """

    def rotl(x: np.ndarray, r: int) -> np.ndarray:
        return ((x << np.uint64(r)) | (x >> np.uint64(32 - r))) & np.uint64(_MASK)

    def mul(x: np.ndarray, c: int) -> np.ndarray:
        return (x * np.uint64(c)) & np.uint64(_MASK)

    h = np.zeros(vocab_size, np.uint64)
    tokens = np.arange(vocab_size, dtype=np.uint64)
    for key in (seed & _MASK, (seed >> 32) & _MASK, pos & _MASK, tokens):
        mixed = mul(rotl(mul(np.broadcast_to(np.uint64(key), h.shape), _C1), 15), _C2)
        h = (rotl(h ^ mixed, 13) * np.uint64(5) + np.uint64(_ROUND)) & np.uint64(_MASK)
    h ^= np.uint64(_KEY_BYTES)
    h = mul(h ^ (h >> np.uint64(16)), _AVALANCHE[0])
    h = mul(h ^ (h >> np.uint64(13)), _AVALANCHE[1])
    return (h ^ (h >> np.uint64(16))).astype(np.uint32)


def stream_is_exact(device: torch.device | str) -> bool:
    """Whether int32 arithmetic on `device` wraps as the hash needs it to. Synchronises; for
    start-up.

    A False means that seeded sampling would not give core's tokens on this device.
    """
    seeds = torch.tensor([0, 1, -1, 2**62 + 12345], dtype=torch.int64)
    positions = torch.tensor([0, 7, 131071, 12], dtype=torch.int64)
    on_device = _rotl(
        _round(seed_state(seeds.to(device)), _rotated(_words(positions.to(device))[:, 0])), 13
    )
    high, low = (half.cpu().numpy().astype(np.uint32) for half in _token_hash(on_device, 257))
    wanted = np.stack(
        [uniform_bits(s, p, 257) for s, p in zip(seeds.tolist(), positions.tolist(), strict=True)]
    )
    return bool(np.array_equal((high << np.uint32(16)) | low, wanted))
