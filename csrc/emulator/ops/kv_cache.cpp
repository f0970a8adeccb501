// SPDX-License-Identifier: Apache-2.0
// Writing and reading the paged KV cache. Slots are device data, so they are checked when it runs.
#include <algorithm>

#include "ops/rules.h"

namespace {
using namespace emu::ops;

bool is_nz(String cache_mode) { return cache_mode == "PA_NZ" || cache_mode == "PA_NZ_BLK"; }

// The cache as [blocks, block_size, elements of a token], whatever its layout.
Tensor by_token(const Tensor& cache, bool nz) {
  return nz ? cache.transpose(1, 2).flatten(2) : cache.flatten(2);
}

int64_t block_size_of(const Tensor& cache, bool nz) { return cache.size(nz ? 2 : 1); }

void check_cache(const char* name, const Tensor& tokens, const Tensor& cache, bool nz) {
  enforce(rule::kKvContiguous, tokens.is_contiguous() && cache.is_contiguous(), name,
          " with strides ", tokens.strides(), " and its cache with strides ", cache.strides());
  enforce(rule::kKvShapes, tokens.dim() == 3 && cache.dim() == 4, name, " of shape ",
          tokens.sizes(), " and its cache of shape ", cache.sizes());
  const int64_t elements = tokens.size(1) * tokens.size(2);
  const bool fits = nz ? cache.size(1) * cache.size(3) == elements
                       : cache.size(2) == tokens.size(1) && cache.size(3) == tokens.size(2);
  enforce(rule::kKvShapes, fits, name, " of shape ", tokens.sizes(), " and its cache of shape ",
          cache.sizes(), nz ? " (PA_NZ)" : " (Norm)");
}

void check_slots(const Tensor& slots, int64_t tokens) {
  enforce(rule::kSlotDtype,
          (slots.scalar_type() == at::kInt || slots.scalar_type() == at::kLong) &&
              slots.dim() == 1 && slots.size(0) == tokens,
          "slot_mapping of dtype ", slots.scalar_type(), " and shape ", slots.sizes(), " for ",
          tokens, " tokens");
  enforce(rule::kKvContiguous, slots.is_contiguous(), "slot_mapping with stride ", slots.strides());
}

void check_scatter(In key, InOut key_cache, In slots, In value, InOut value_cache,
                   OptIn compress_lens, OptIn compress_offsets, OptIn seq_lens, String cache_mode,
                   String scatter_mode, Ints, Ints) {
  require(!compress_lens && !compress_offsets && !seq_lens,
          "compressed caches (compress_lens, compress_seq_offsets, seq_lens) are not emulated");
  require(cache_mode.empty() || cache_mode == "Norm" || is_nz(cache_mode), "cache_mode '",
          cache_mode, "' is not emulated: use 'Norm' or 'PA_NZ'");
  require(scatter_mode.empty() || scatter_mode == "None", "scatter_mode '", scatter_mode,
          "' is not emulated: use 'None'");
  enforce(rule::kKvSameDtype,
          key.scalar_type() == value.scalar_type() &&
              key.scalar_type() == key_cache.scalar_type() &&
              key.scalar_type() == value_cache.scalar_type(),
          key.scalar_type(), ", ", value.scalar_type(), ", ", key_cache.scalar_type(), " and ",
          value_cache.scalar_type());
  check_cache("key", key, key_cache, is_nz(cache_mode));
  check_cache("value", value, value_cache, is_nz(cache_mode));
  enforce(rule::kKvShapes, key.size(0) == value.size(0) && key.size(1) == value.size(1), "key ",
          key.sizes(), " and value ", value.sizes());
  check_slots(slots, key.size(0));
}

// The slots that are written, with the tokens that go there. Throws for one that is out of range or
// occurs twice.
std::pair<Tensor, Tensor> written_slots(const Tensor& slots, int64_t capacity) {
  const Tensor wide = slots.to(at::kLong).contiguous();
  const int64_t* slot = wide.const_data_ptr<int64_t>();
  std::vector<int64_t> kept_slots;
  std::vector<int64_t> kept_tokens;
  for (int64_t token = 0; token < wide.numel(); ++token) {
    enforce(rule::kSlotRange, slot[token] < capacity, "slot ", slot[token], " for token ", token,
            " of a cache with ", capacity, " slots");
    if (slot[token] >= 0) {
      kept_slots.push_back(slot[token]);
      kept_tokens.push_back(token);
    }
  }
  std::vector<int64_t> ordered = kept_slots;
  std::sort(ordered.begin(), ordered.end());
  const auto twice = std::adjacent_find(ordered.begin(), ordered.end());
  enforce(rule::kSlotUnique, twice == ordered.end(), "slot ", twice == ordered.end() ? 0 : *twice,
          " twice among ", kept_slots.size(), " tokens");
  return {at::tensor(kept_slots, at::kLong), at::tensor(kept_tokens, at::kLong)};
}

void scatter(const Tensor& tokens, const Tensor& cache, const std::pair<Tensor, Tensor>& written,
             bool nz) {
  if (emu::is_checking() && !nz) {
    const size_t token_bytes = cache.nbytes() / static_cast<size_t>(cache.size(0) * cache.size(1));
    const int64_t* slot = written.first.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < written.first.numel(); ++i) {
      emu::note_access(static_cast<const char*>(cache.const_data_ptr()) +
                           static_cast<size_t>(slot[i]) * token_bytes,
                       token_bytes, true);
    }
  }
  const Tensor rows = tokens.flatten(1).index_select(0, written.second);
  if (nz) {
    const int64_t block_size = block_size_of(cache, nz);
    const Tensor block = written.first.div(block_size, "floor");
    // [blocks, n, block_size, m]: a token is [n, m] at its place in the block.
    cache.transpose(1, 2).index_put_({block, written.first.remainder(block_size)},
                                     rows.view({rows.size(0), cache.size(1), cache.size(3)}));
  } else {
    cache.view({cache.size(0) * cache.size(1), -1}).index_copy_(0, written.first, rows);
  }
}
}  // namespace

CHECKED_OPERATOR(aclnnScatterPaKvCache, check_scatter,
                 [](In key, InOut key_cache, In slots, In value, InOut value_cache, OptIn, OptIn,
                    OptIn, String cache_mode, String, Ints, Ints) {
                   const bool nz = is_nz(cache_mode);
                   const int64_t capacity =
                       std::min(key_cache.size(0) * block_size_of(key_cache, nz),
                                value_cache.size(0) * block_size_of(value_cache, nz));
                   const auto written = written_slots(slots, capacity);
                   scatter(key, key_cache, written, nz);
                   scatter(value, value_cache, written, nz);
                 })
// The key alone (latent caches).
OPERATOR(aclnnScatterPaCache, [](In key, InOut key_cache, In slots, OptIn compress_lens,
                                 OptIn compress_offsets, OptIn seq_lens, String cache_mode) {
  require(!compress_lens && !compress_offsets && !seq_lens,
          "compressed caches (compress_lens, compress_seq_offsets, seq_lens) are not emulated");
  require(cache_mode.empty() || cache_mode == "Norm", "cache_mode '", cache_mode,
          "' is not emulated: use 'Norm'");
  check_cache("key", key, key_cache, false);
  check_slots(slots, key.size(0));
  scatter(key, key_cache, written_slots(slots, key_cache.size(0) * key_cache.size(1)), false);
})

// Copies the tokens of each sequence out of the paged caches, one sequence after the other. With
// cumulative lengths seq_lens is [batch + 1].
OPERATOR(aclnnGatherPaKvCache, [](In key_cache, In value_cache, In block_tables, In seq_lens,
                                  InOut key, InOut value, OptIn seq_offsets, String cache_mode,
                                  bool cumulative) {
  require(!seq_offsets, "seq_offset is not emulated");
  const bool nz = is_nz(cache_mode);
  const Tensor keys = by_token(key_cache, nz);
  const Tensor values = by_token(value_cache, nz);
  const int64_t block_size = keys.size(1);
  const Tensor lengths = seq_lens.to(at::kLong).contiguous();
  const Tensor counts = cumulative ? lengths.diff() : lengths;
  int64_t first = 0;
  for (int64_t sequence = 0; sequence < counts.numel(); ++sequence) {
    const int64_t count = counts[sequence].item<int64_t>();
    const int64_t blocks = (count + block_size - 1) / block_size;
    const Tensor row = block_tables.select(0, sequence).slice(0, 0, blocks);
    enforce(
        rule::kBlockTableRange,
        count == 0 || (row.min().item<int64_t>() >= 0 && row.max().item<int64_t>() < keys.size(0)),
        "row ", sequence, " of block_tables for a cache of ", keys.size(0), " blocks");
    const auto gather = [&](const Tensor& cache, const Tensor& out) {
      out.slice(0, first, first + count)
          .flatten(1)
          .copy_(cache.index_select(0, row).flatten(0, 1).slice(0, 0, count));
    };
    gather(keys, key);
    gather(values, value);
    first += count;
  }
})
