// SPDX-License-Identifier: Apache-2.0
// Rotary position embeddings. All compute in float32 and round once.
#include "ops/checks.h"
#include "ops/operator.h"

namespace {
using namespace emu::ops;

enum Mode : int64_t { kHalf = 0, kInterleave = 1 };

Mode mode_of(String name) {
  require(name == "half" || name == "interleave", "rotary_mode '", name,
          "' is not emulated: use 'half' or 'interleave'");
  return name == "half" ? kHalf : kInterleave;
}

// Each pair (a, b) becomes (-b, a). Pairs are (i, i + D / 2) or (2 i, 2 i + 1).
Tensor rotate(const Tensor& x, int64_t mode) {
  if (mode == kHalf) {
    const auto halves = x.chunk(2, -1);
    return at::cat({-halves[1], halves[0]}, -1);
  }
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t mode) {
  const Tensor wide = x.to(at::kFloat);
  return wide * cos.to(at::kFloat) + rotate(wide, mode) * sin.to(at::kFloat);
}

void check_tables(const char* name, const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_dtype(name, x, {at::kFloat, at::kHalf, at::kBFloat16});
  require(cos.sizes() == sin.sizes(), "cos has shape ", cos.sizes(), " but sin has ", sin.sizes());
  require(x.size(-1) == cos.size(-1), name, " has head size ", x.size(-1), " but cos has ",
          cos.size(-1));
  require(x.size(-1) % 2 == 0, name, " has the odd head size ", x.size(-1));
}

void check_rotary(In x, In cos, In sin, int64_t mode, Out out) {
  check_tables("x", x, cos, sin);
  require(mode == kHalf || mode == kInterleave, "mode ", mode,
          " is not emulated: 0 (half) and 1 (interleave) are");
  check_broadcast({x.sizes(), cos.sizes()}, out.sizes());
}

void apply_to_both(InOut query, InOut key, const Tensor& cos, const Tensor& sin, int64_t mode) {
  query.copy_(rope(query, cos, sin, mode));
  key.copy_(rope(key, cos, sin, mode));
}

// cos_sin_cache [positions, rotary], cosines first. positions [tokens], or [3, tokens] with
// mrope_section: pair i takes the row of positions that its section names.
void rope_by_position(const Tensor& positions, const Tensor& query, const Tensor& key,
                      const Tensor& cache, Ints mrope_section, int64_t head_size, bool neox,
                      Tensor query_out, Tensor key_out) {
  const Tensor where = positions.to(at::kLong);
  require(where.numel() == 0 ||
              (where.min().item<int64_t>() >= 0 && where.max().item<int64_t>() < cache.size(0)),
          "a position is outside the ", cache.size(0), " rows of cos_sin_cache");
  Tensor rows = cache.index_select(0, where.reshape(-1)).to(at::kFloat);
  const int64_t rotary = cache.size(-1);
  auto tables = rows.chunk(2, -1);  // [tokens, rotary / 2] each
  if (where.dim() == 2) {
    require(mrope_section.size() == 3, "positions are [3, tokens]: mrope_section needs 3 values");
    for (Tensor& table : tables) {
      const Tensor by_axis = table.view({3, -1, rotary / 2});
      TensorVector parts;
      int64_t first = 0;
      for (int64_t axis = 0; axis < 3; ++axis) {
        parts.push_back(by_axis.select(0, axis).slice(-1, first, first + mrope_section[axis]));
        first += mrope_section[axis];
      }
      require(first == rotary / 2, "mrope_section sums to ", first,
              ", not to half of the rotary "
              "size ",
              rotary);
      table = at::cat(parts, -1);
    }
  }
  const int64_t mode = neox ? kHalf : kInterleave;
  const auto widen = [&](const Tensor& table) {
    const Tensor full = neox ? at::cat({table, table}, -1) : table.repeat_interleave(2, -1);
    return full.unsqueeze(1);  // [tokens, 1, rotary]
  };
  const Tensor cos = widen(tables[0]);
  const Tensor sin = widen(tables[1]);
  const auto apply = [&](const Tensor& x, Tensor out) {
    const Tensor heads = x.reshape({x.size(0), -1, head_size});
    Tensor result = heads.to(at::kFloat).clone();
    result.slice(-1, 0, rotary).copy_(rope(heads.slice(-1, 0, rotary), cos, sin, mode));
    out.copy_(result.view(out.sizes()));
  };
  apply(query, query_out);
  apply(key, key_out);
}

void check_by_position(In positions, In query, In key, In cache, Ints, int64_t head_size, bool, Out,
                       Out) {
  check_dtype("positions", positions, {at::kInt, at::kLong});
  check_dtype("query", query, {at::kFloat, at::kHalf, at::kBFloat16});
  check_dim("cos_sin_cache", cache, 2);
  require(positions.dim() == 1 || (positions.dim() == 2 && positions.size(0) == 3),
          "positions must be [tokens] or [3, tokens] and has shape ", positions.sizes());
  require(head_size > 0 && query.numel() / query.size(0) % head_size == 0 &&
              key.numel() / key.size(0) % head_size == 0,
          "head_size ", head_size, " does not divide the rows of query ", query.sizes(),
          " and key ", key.sizes());
  require(cache.size(-1) <= head_size, "cos_sin_cache rotates ", cache.size(-1),
          " elements of a head of ", head_size);
}
}  // namespace

CHECKED_OPERATOR(aclnnRotaryPositionEmbedding, check_rotary,
                 [](In x, In cos, In sin, int64_t mode, Out out) {
                   out.copy_(rope(x, cos, sin, mode));
                 })
CHECKED_OPERATOR(
    aclnnApplyRotaryPosEmb,
    [](InOut query, InOut key, In cos, In sin, int64_t) {
      check_tables("query", query, cos, sin);
      check_tables("key", key, cos, sin);
    },
    [](InOut query, InOut key, In cos, In sin, int64_t) {
      apply_to_both(query, key, cos, sin, kHalf);
    })
CHECKED_OPERATOR(
    aclnnApplyRotaryPosEmbV2,
    [](InOut query, InOut key, In cos, In sin, int64_t, String mode) {
      mode_of(mode);
      check_tables("query", query, cos, sin);
      check_tables("key", key, cos, sin);
    },
    [](InOut query, InOut key, In cos, In sin, int64_t, String mode) {
      apply_to_both(query, key, cos, sin, mode_of(mode));
    })
CHECKED_OPERATOR(aclnnRopeWithSinCosCache, check_by_position,
                 [](In positions, In query, In key, In cache, Ints mrope_section, int64_t head_size,
                    bool neox, Out query_out, Out key_out) {
                   rope_by_position(positions, query, key, cache, mrope_section, head_size, neox,
                                    query_out, key_out);
                 })
CHECKED_OPERATOR(
    aclnnRopeWithSinCosCacheV2,
    [](In positions, In query, In key, In cache, Ints mrope_section, int64_t head_size, bool neox,
       int64_t cache_mode, Out query_out, Out key_out) {
      require(cache_mode == 0, "cache_mode ", cache_mode, " is not emulated: use 0");
      check_by_position(positions, query, key, cache, mrope_section, head_size, neox, query_out,
                        key_out);
    },
    [](In positions, In query, In key, In cache, Ints mrope_section, int64_t head_size, bool neox,
       int64_t, Out query_out, Out key_out) {
      rope_by_position(positions, query, key, cache, mrope_section, head_size, neox, query_out,
                       key_out);
    })
