// SPDX-License-Identifier: Apache-2.0
// Fused attention: one implementation, checked against the rules of rules.h, behind the versions of
// FusedInferAttentionScore and behind FlashAttentionScore. Computes in float32.
#include <algorithm>
#include <limits>
#include <utility>

#include "ops/rules.h"

namespace {
using namespace emu::ops;

// How rows, heads and batch lie in query and output.
enum class Layout : uint8_t { kTnd, kNtd, kBsh, kBsnd, kBnsd, kNbsd, kSbh };

Layout layout_of(const std::string& name) {
  static constexpr std::pair<const char*, Layout> kNames[] = {
      {"TND", Layout::kTnd},   {"NTD", Layout::kNtd},   {"BSH", Layout::kBsh},
      {"BSND", Layout::kBsnd}, {"BNSD", Layout::kBnsd}, {"NBSD", Layout::kNbsd},
      {"SBH", Layout::kSbh}};
  for (const auto& [known, layout] : kNames) {
    if (name == known) {
      return layout;
    }
  }
  require(false, "input_layout '", name,
          "' is not emulated: use TND, NTD, BSH, BSND, BNSD, SBH, or a pair as BNSD_BSND");
  return Layout::kTnd;
}

bool is_packed(Layout layout) { return layout == Layout::kTnd || layout == Layout::kNtd; }

// [rows, heads, D] of one sequence; `first` and `count` are rows of a packed tensor.
Tensor sequence_of(const Tensor& tensor, Layout layout, int64_t heads, int64_t sequence,
                   int64_t first, int64_t count) {
  switch (layout) {
    case Layout::kTnd:
      return tensor.slice(0, first, first + count);
    case Layout::kNtd:
      return tensor.slice(1, first, first + count).transpose(0, 1);
    case Layout::kBsh:
      return tensor.select(0, sequence).unflatten(-1, {heads, -1}).slice(0, 0, count);
    case Layout::kSbh:
      return tensor.select(1, sequence).unflatten(-1, {heads, -1}).slice(0, 0, count);
    case Layout::kBsnd:
      return tensor.select(0, sequence).slice(0, 0, count);
    case Layout::kBnsd:
      return tensor.select(0, sequence).transpose(0, 1).slice(0, 0, count);
    case Layout::kNbsd:
      return tensor.select(1, sequence).transpose(0, 1).slice(0, 0, count);
  }
  return {};
}

struct Attention {
  Tensor query;
  Tensor key;
  Tensor value;
  std::optional<Tensor> mask;
  std::optional<Tensor> block_table;
  // As given; `lengths` makes them per sequence.
  std::optional<std::vector<int64_t>> query_lengths;
  std::optional<std::vector<int64_t>> kv_lengths;
  int64_t heads;
  int64_t kv_heads;
  double scale;
  int64_t pre_tokens;
  int64_t next_tokens;
  std::string input_layout;
  int64_t sparse_mode;
  int64_t block_size;
  Tensor out;
  Tensor lse;  // undefined: not wanted

  Layout query_layout() const { return layout_of(input_layout.substr(0, input_layout.find('_'))); }
  Layout out_layout() const {
    const size_t separator = input_layout.find('_');
    return separator == std::string::npos ? query_layout()
                                          : layout_of(input_layout.substr(separator + 1));
  }
  bool paged() const { return block_table.has_value(); }
  int64_t packed_rows() const { return query.size(query_layout() == Layout::kNtd ? 1 : 0); }
  int64_t batch() const {
    const Layout layout = query_layout();
    if (is_packed(layout)) {
      return query_lengths ? static_cast<int64_t>(query_lengths->size()) : 0;
    }
    return query.size(layout == Layout::kSbh ? 1 : 0);
  }
  // Rows of one sequence in a padded tensor.
  static int64_t padded_rows(const Tensor& tensor, Layout layout) {
    switch (layout) {
      case Layout::kBnsd:
        return tensor.size(2);
      case Layout::kSbh:
        return tensor.size(0);
      default:
        return tensor.size(1);
    }
  }
  int64_t head_size_of(const Tensor& tensor, int64_t of_heads) const {
    const Layout layout = query_layout();
    const bool merged = layout == Layout::kBsh || layout == Layout::kSbh;
    return merged ? tensor.size(-1) / of_heads : tensor.size(-1);
  }
  // A paged cache [blocks, kv_heads, block_size, D], against [blocks, block_size, kv_heads * D].
  bool heads_before_tokens() const { return key.dim() == 4; }
};

// Lengths as error text; writes at most the first few.
struct Shown {
  const std::vector<int64_t>& values;
};
std::ostream& operator<<(std::ostream& stream, const Shown& shown) {
  stream << "[";
  for (size_t i = 0; i < shown.values.size(); ++i) {
    if (i == 8 && shown.values.size() > 12) {
      return stream << ", ... (" << shown.values.size() << " values)]";
    }
    stream << (i > 0 ? ", " : "") << shown.values[i];
  }
  return stream << "]";
}

// ---- the checks of phase 1

// A list with one value for all sequences, or one (or more) for each.
std::vector<int64_t> per_sequence(const std::vector<int64_t>& given, int64_t batch,
                                  const char* name) {
  enforce(rule::kLengthsCount, given.size() == 1 || static_cast<int64_t>(given.size()) >= batch,
          name, " with ", given.size(), " values for ", batch, " sequences");
  return given.size() == 1 ? std::vector<int64_t>(batch, given[0])
                           : std::vector<int64_t>(given.begin(), given.begin() + batch);
}

void check_cumulative(const Rule& rule, const std::vector<int64_t>& values, const char* name) {
  int64_t before = 0;
  for (const int64_t value : values) {
    enforce(rule, value >= before, name, " = ", Shown{values}, ": ", value, " after ", before);
    before = value;
  }
}

std::vector<int64_t> differences(const std::vector<int64_t>& cumulative) {
  std::vector<int64_t> counts(cumulative.size());
  int64_t before = 0;
  for (size_t i = 0; i < cumulative.size(); ++i) {
    counts[i] = cumulative[i] - before;
    before = cumulative[i];
  }
  return counts;
}

// Rows of query in each sequence.
std::vector<int64_t> query_rows(const Attention& a) {
  const Layout layout = a.query_layout();
  if (!is_packed(layout)) {
    const int64_t rows = Attention::padded_rows(a.query, layout);
    const std::vector<int64_t> counts =
        a.query_lengths && !a.query_lengths->empty()
            ? per_sequence(*a.query_lengths, a.batch(), "actual_seq_qlen")
            : std::vector<int64_t>(a.batch(), rows);
    for (const int64_t count : counts) {
      enforce(rule::kQueryLengthRange, count >= 0 && count <= rows, count, " with S = ", rows);
    }
    return counts;
  }
  enforce(rule::kQueryLengthsGiven, a.query_lengths && !a.query_lengths->empty(),
          "no actual_seq_qlen");
  enforce(rule::kBatchLimit, a.query_lengths->size() <= 4096, a.query_lengths->size());
  check_cumulative(rule::kQueryLengthsAscend, *a.query_lengths, "actual_seq_qlen");
  enforce(rule::kQueryLengthsEnd, a.query_lengths->back() == a.packed_rows(),
          "actual_seq_qlen = ", Shown{*a.query_lengths}, " with T = ", a.packed_rows());
  return differences(*a.query_lengths);
}

// Tokens of key and value in each sequence.
std::vector<int64_t> kv_rows(const Attention& a) {
  const int64_t batch = a.batch();
  if (a.paged()) {
    enforce(rule::kKvLengthsCount,
            a.kv_lengths && (static_cast<int64_t>(a.kv_lengths->size()) == batch ||
                             (!is_packed(a.query_layout()) && a.kv_lengths->size() == 1)),
            a.kv_lengths ? a.kv_lengths->size() : 0, " values for ", batch, " sequences");
    const std::vector<int64_t> counts = per_sequence(*a.kv_lengths, batch, "actual_seq_kvlen");
    const int64_t capacity = a.block_table->size(1) * a.block_size;
    for (const int64_t count : counts) {
      enforce(rule::kKvLengthRange, count >= 0, count);
      enforce(rule::kBlockTableShape, count <= capacity, "a sequence of ", count,
              " tokens with block_table ", a.block_table->sizes(), " and block_size ",
              a.block_size);
    }
    return counts;
  }
  if (is_packed(a.query_layout())) {
    enforce(rule::kQueryLengthsGiven, a.kv_lengths && !a.kv_lengths->empty(),
            "no actual_seq_kvlen");
    enforce(rule::kKvLengthsCount, static_cast<int64_t>(a.kv_lengths->size()) == batch,
            a.kv_lengths->size(), " values for ", batch, " sequences");
    const int64_t rows = a.key.size(a.query_layout() == Layout::kNtd ? 1 : 0);
    check_cumulative(rule::kKvLengthsAscend, *a.kv_lengths, "actual_seq_kvlen");
    enforce(rule::kKvLengthsAscend, a.kv_lengths->back() <= rows, Shown{*a.kv_lengths}, " with ",
            rows, " rows of key");
    return differences(*a.kv_lengths);
  }
  const int64_t rows = Attention::padded_rows(a.key, a.query_layout());
  const std::vector<int64_t> counts = a.kv_lengths && !a.kv_lengths->empty()
                                          ? per_sequence(*a.kv_lengths, batch, "actual_seq_kvlen")
                                          : std::vector<int64_t>(batch, rows);
  for (const int64_t count : counts) {
    enforce(rule::kKvLengthRange, count >= 0 && count <= rows, count, " with ", rows,
            " rows of key");
  }
  return counts;
}

void check_paged(const Attention& a) {
  const Layout layout = a.query_layout();
  const Tensor& table = *a.block_table;
  enforce(rule::kBlockTableShape,
          table.scalar_type() == at::kInt && table.dim() == 2 && table.size(0) == a.batch(),
          "dtype ", table.scalar_type(), " and shape ", table.sizes(), " for ", a.batch(),
          " sequences");
  const int64_t step = a.key.scalar_type() == at::kChar ? 32 : 16;
  enforce(rule::kBlockSize, a.block_size > 0 && a.block_size % step == 0 && a.block_size <= 1024,
          "block_size ", a.block_size);
  enforce(rule::kCacheLayout,
          a.key.sizes() == a.value.sizes() &&
              (a.key.dim() == 3 ||
               (a.key.dim() == 4 &&
                (layout == Layout::kTnd || layout == Layout::kNtd || layout == Layout::kBnsd))),
          "key ", a.key.sizes(), ", value ", a.value.sizes(), " and layout ", a.input_layout);
  if (a.heads_before_tokens()) {
    enforce(rule::kCacheLayout, a.key.size(1) == a.kv_heads, "key ", a.key.sizes(), " with ",
            a.kv_heads,
            " key/value heads (a cache [blocks, block_size, kv_heads, D] is passed as "
            "[blocks, block_size, kv_heads * D])");
  } else {
    enforce(rule::kCacheRowLimit, a.key.size(2) <= 65535, a.key.size(2));
    enforce(rule::kHeads, a.key.size(2) % a.kv_heads == 0, "a cache row of ", a.key.size(2),
            " elements for ", a.kv_heads, " key/value heads");
  }
  const int64_t rows = a.key.size(a.heads_before_tokens() ? 2 : 1);
  enforce(rule::kBlockSize, rows == a.block_size, "block_size ", a.block_size,
          " for a cache of shape ", a.key.sizes());
}

void check_mask(const Attention& a) {
  require(a.sparse_mode >= 0 && a.sparse_mode <= 4, "sparse_mode ", a.sparse_mode,
          " is not emulated: 0 to 4 are");
  if (a.mask) {
    const ScalarType type = a.mask->scalar_type();
    enforce(rule::kMaskDtype, type == at::kBool || type == at::kChar || type == at::kByte, type);
  }
  if (a.sparse_mode >= 2) {
    enforce(
        rule::kCompressedMask, a.mask && a.mask->numel() == 2048 * 2048 && a.mask->size(-1) == 2048,
        a.mask ? "a mask of other shape" : "no atten_mask", " with sparse_mode ", a.sparse_mode);
  } else {
    enforce(rule::kFullMask, a.sparse_mode == 0 || a.mask, "no atten_mask with sparse_mode 1");
    enforce(rule::kFullMask, !a.mask || (a.mask->dim() >= 2 && a.mask->dim() <= 4),
            "an atten_mask of ", a.mask ? a.mask->dim() : 0, " dimensions");
    if (a.mask) {
      const std::vector<int64_t> rows = query_rows(a);
      const std::vector<int64_t> tokens = kv_rows(a);
      enforce(rule::kFullMask,
              a.mask->size(-2) >= *std::max_element(rows.begin(), rows.end()) &&
                  a.mask->size(-1) >= *std::max_element(tokens.begin(), tokens.end()),
              "atten_mask of shape ", a.mask->sizes());
    }
  }
}

void check_heads(const Attention& a) {
  enforce(rule::kHeads, a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0, a.heads,
          " query heads and ", a.kv_heads, " key/value heads");
  const Layout layout = a.query_layout();
  const int64_t dims =
      is_packed(layout) || layout == Layout::kBsh || layout == Layout::kSbh ? 3 : 4;
  require(a.query.dim() == dims, "query of layout ", a.input_layout, " must have ", dims,
          " dimensions and has shape ", a.query.sizes());
  require(a.paged() || (a.key.dim() == dims && a.value.dim() == dims), "key and value of layout ",
          a.input_layout, " must have ", dims, " dimensions and have shapes ", a.key.sizes(),
          " and ", a.value.sizes());
  const auto heads_of = [&](const Tensor& tensor, int64_t expected) {
    switch (layout) {
      case Layout::kTnd:
      case Layout::kBnsd:
        return tensor.size(1);
      case Layout::kNtd:
        return tensor.size(0);
      case Layout::kBsnd:
        return tensor.size(2);
      default:
        return tensor.size(-1) % expected == 0 ? expected : -1;
    }
  };
  enforce(rule::kHeads, heads_of(a.query, a.heads) == a.heads, "query ", a.query.sizes(), " with ",
          a.heads, " heads in layout ", a.input_layout);
  const int64_t head_size = a.head_size_of(a.query, a.heads);
  int64_t key_size = 0;
  if (a.paged()) {
    key_size = a.heads_before_tokens() ? a.key.size(3) : a.key.size(2) / a.kv_heads;
  } else {
    enforce(
        rule::kHeads,
        heads_of(a.key, a.kv_heads) == a.kv_heads && heads_of(a.value, a.kv_heads) == a.kv_heads,
        "key ", a.key.sizes(), " and value ", a.value.sizes(), " with ", a.kv_heads,
        " heads in layout ", a.input_layout);
    key_size = a.head_size_of(a.key, a.kv_heads);
  }
  enforce(rule::kHeadSize, head_size == key_size && head_size > 0 && head_size <= 512, head_size,
          " and ", key_size);
}

void check_contiguous(const char* name, const Tensor& tensor) {
  enforce(rule::kContiguous, tensor.is_contiguous(), name, " of shape ", tensor.sizes(),
          " with strides ", tensor.strides());
}

void check(const Attention& a) {
  const auto supported = {at::kHalf, at::kBFloat16, at::kFloat};
  enforce(rule::kDtype,
          std::find(supported.begin(), supported.end(), a.query.scalar_type()) != supported.end(),
          a.query.scalar_type());
  enforce(rule::kSameDtype,
          a.key.scalar_type() == a.query.scalar_type() &&
              a.value.scalar_type() == a.query.scalar_type() &&
              a.out.scalar_type() == a.query.scalar_type(),
          a.query.scalar_type(), ", ", a.key.scalar_type(), ", ", a.value.scalar_type(), " and ",
          a.out.scalar_type());
  check_contiguous("query", a.query);
  check_contiguous("key", a.key);
  check_contiguous("value", a.value);
  if (a.mask) {
    check_contiguous("atten_mask", *a.mask);
  }
  if (a.block_table) {
    check_contiguous("block_table", *a.block_table);
  }
  a.out_layout();
  if (a.paged()) {
    require(a.key.dim() >= 3, "a paged key must have 3 or 4 dimensions and has shape ",
            a.key.sizes());
  }
  check_heads(a);
  const std::vector<int64_t> rows = query_rows(a);
  if (a.paged()) {
    check_paged(a);
  }
  kv_rows(a);
  check_mask(a);
  int64_t all_rows = 0;
  for (const int64_t count : rows) {
    all_rows += count;
  }
  if (a.lse.defined()) {
    enforce(rule::kOutputShape, a.lse.numel() >= all_rows * a.heads, "softmax_lse of shape ",
            a.lse.sizes(), " for ", all_rows, " rows and ", a.heads, " heads");
  }
}

// ---- the computation

// [kv_heads, tokens, D] of one sequence from a paged cache: copies only the blocks that it has.
Tensor gather_paged(const Attention& a, const Tensor& cache, const Tensor& blocks, int64_t tokens) {
  if (emu::is_checking()) {
    const size_t block_bytes = static_cast<size_t>(cache.stride(0)) * cache.element_size();
    for (int64_t i = 0; i < blocks.numel(); ++i) {
      const int32_t block = blocks.const_data_ptr<int32_t>()[i];
      // With heads before tokens a block's tokens lie all over it.
      const int64_t left = tokens - i * a.block_size;
      const size_t used =
          a.heads_before_tokens() || left >= a.block_size
              ? block_bytes
              : block_bytes / static_cast<size_t>(a.block_size) * static_cast<size_t>(left);
      emu::note_access(static_cast<const char*>(cache.const_data_ptr()) + block * block_bytes, used,
                       false);
    }
  }
  const Tensor taken = cache.index_select(0, blocks);
  const Tensor by_token = a.heads_before_tokens()
                              ? taken.transpose(1, 2).flatten(0, 1)
                              : taken.view({-1, a.kv_heads, cache.size(2) / a.kv_heads});
  return by_token.slice(0, 0, tokens).transpose(0, 1);
}

Tensor blocks_of(const Attention& a, int64_t sequence, int64_t tokens) {
  const int64_t count = (tokens + a.block_size - 1) / a.block_size;
  const Tensor blocks = a.block_table->select(0, sequence).slice(0, 0, count);
  const int32_t* block = blocks.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    enforce(rule::kBlockTableRange, block[i] >= 0 && block[i] < a.key.size(0), "block_table[",
            sequence, "][", i, "] = ", block[i], " for a cache of ", a.key.size(0), " blocks");
  }
  return blocks;
}

// What a row may not see, [rows, tokens] bool; undefined: it sees all.
Tensor hidden(const Attention& a, int64_t sequence, int64_t rows, int64_t tokens) {
  constexpr int64_t kEverything = std::numeric_limits<int32_t>::max();
  int64_t before = kEverything;  // tokens seen before the row's own position, and after it
  int64_t after = kEverything;
  int64_t shift = 0;  // position of row 0
  Tensor given;
  switch (a.sparse_mode) {
    case 0:
    case 1:
      if (a.mask) {
        given = *a.mask;
        while (given.dim() > 2) {
          given = given.select(0, given.size(0) > 1 ? sequence : 0);
        }
        given = given.slice(0, 0, rows).slice(1, 0, tokens).to(at::kBool);
        if (a.sparse_mode == 0) {
          before = a.pre_tokens;
          after = a.next_tokens;
        }
      }
      break;
    case 2:
      after = 0;
      break;
    case 3:
      after = 0;
      shift = tokens - rows;
      break;
    default:
      before = a.pre_tokens;
      after = a.next_tokens;
      shift = tokens - rows;
  }
  // The last row sees the most after it, the first the most before it.
  const bool cut_after = after < kEverything && shift + after < tokens - 1;
  const bool cut_before = before < kEverything && shift + rows - 1 - before > 0;
  if (!cut_after && !cut_before) {
    return given;
  }
  const Tensor all = at::ones({rows, tokens}, at::TensorOptions().dtype(at::kBool));
  Tensor cut = cut_after ? all.triu(shift + after + 1) : Tensor();
  if (cut_before) {
    const Tensor early = all.tril(shift - before - 1);
    cut = cut.defined() ? cut.logical_or(early) : early;
  }
  return given.defined() ? given.logical_or(cut) : cut;
}

// query [rows, heads, D], key and value [kv_heads, tokens, D] -> [rows, heads, D] float32. Heads
// that share a key/value head are rows of one product, so nothing is repeated.
struct Result {
  Tensor out;
  Tensor lse;  // [rows, heads, 1]
  Tensor max;  // [rows, heads, 1], of the scaled scores
};
Result attend(const Attention& a, const Tensor& query, const Tensor& key, const Tensor& value,
              const Tensor& hidden_from, bool statistics) {
  const int64_t rows = query.size(0);
  const int64_t tokens = key.size(1);
  const int64_t group = a.heads / a.kv_heads;
  const Tensor grouped = query.to(at::kFloat)
                             .reshape({rows, a.kv_heads, group, query.size(2)})
                             .permute({1, 0, 2, 3})
                             .reshape({a.kv_heads, rows * group, query.size(2)});
  Tensor scores = at::bmm(grouped, key.to(at::kFloat).transpose(1, 2)).mul_(a.scale);
  if (hidden_from.defined()) {
    scores.view({a.kv_heads, rows, group, tokens})
        .masked_fill_(hidden_from.unsqueeze(1), -std::numeric_limits<float>::infinity());
  }
  const auto by_row = [&](const Tensor& grouped_rows) {
    return grouped_rows.view({a.kv_heads, rows, group, grouped_rows.size(-1)})
        .permute({1, 0, 2, 3})
        .reshape({rows, a.heads, grouped_rows.size(-1)});
  };
  Result result;
  if (statistics) {
    result.lse = by_row(at::logsumexp(scores, {-1}, true));
    result.max = by_row(at::amax(scores, {-1}, true));
  }
  Tensor weights = at::softmax(scores, -1);
  if (hidden_from.defined()) {
    weights.nan_to_num_(0);  // a row that sees nothing gives zeros
  }
  result.out = by_row(at::bmm(weights, value.to(at::kFloat)));
  return result;
}

// A probe of the compressed mask: the hardware reads it, so one that is not upper triangular would
// give other results there.
void check_mask_content(const Attention& a) {
  if (a.sparse_mode < 2) {
    return;
  }
  const auto* mask = static_cast<const uint8_t*>(a.mask->const_data_ptr());
  for (const int64_t i : {0, 1, 511, 1023, 2046}) {
    const int64_t row = i * 2048;
    enforce(rule::kCompressedMask, mask[row + i] == 0 && mask[row + i + 1] != 0,
            "a mask that is not so in row ", i);
  }
}

template <class EachSequence>
void for_each_sequence(const Attention& a, bool statistics, EachSequence use) {
  const Layout layout = a.query_layout();
  const std::vector<int64_t> rows = query_rows(a);
  const std::vector<int64_t> tokens = kv_rows(a);
  check_mask_content(a);
  int64_t first_row = 0;
  int64_t first_token = 0;
  for (int64_t sequence = 0; sequence < static_cast<int64_t>(rows.size()); ++sequence) {
    const int64_t row_count = rows[sequence];
    const int64_t token_count = tokens[sequence];
    if (row_count > 0 && token_count > 0) {
      Tensor key;
      Tensor value;
      if (a.paged()) {
        const Tensor blocks = blocks_of(a, sequence, token_count);
        key = gather_paged(a, a.key, blocks, token_count);
        value = gather_paged(a, a.value, blocks, token_count);
      } else {
        key = sequence_of(a.key, layout, a.kv_heads, sequence, first_token, token_count)
                  .transpose(0, 1);
        value = sequence_of(a.value, layout, a.kv_heads, sequence, first_token, token_count)
                    .transpose(0, 1);
      }
      const Tensor query = sequence_of(a.query, layout, a.heads, sequence, first_row, row_count);
      use(sequence, first_row, row_count,
          attend(a, query, key, value, hidden(a, sequence, row_count, token_count), statistics));
    } else {
      use(sequence, first_row, row_count, Result{});
    }
    first_row += row_count;
    first_token += token_count;
  }
}

void run(const Attention& a) {
  const Layout out_layout = a.out_layout();
  const bool packed = is_packed(a.query_layout());
  if (!packed) {
    Tensor(a.out).zero_();  // rows beyond a sequence's length
  }
  for_each_sequence(
      a, a.lse.defined(),
      [&](int64_t sequence, int64_t first_row, int64_t rows, const Result& result) {
        Tensor out = sequence_of(a.out, out_layout, a.heads, sequence, first_row, rows);
        if (!result.out.defined()) {
          out.zero_();
          return;
        }
        out.copy_(result.out);
        if (a.lse.defined()) {
          // [T, heads, 1], or [batch, heads, S, 1].
          Tensor lse = packed ? a.lse.slice(0, first_row, first_row + rows)
                              : a.lse.select(0, sequence).slice(1, 0, rows).transpose(0, 1);
          lse.copy_(result.lse);
        }
      });
}

// ---- FusedInferAttentionScore: the parameters that are used, of the many that there are

// What the emulated device does not compute must not be passed.
template <class... Given>
void refuse_extras(const Given&... given) {
  const bool any = (... || given.has_value());
  require(!any,
          "pse_shift, quantisation and antiquantisation parameters, padding sizes, shared "
          "prefixes, query_rope, key_rope and learnable_sink are not emulated");
}

Attention infer_attention(In query, InList key, InList value, OptIn mask, OptInts query_lengths,
                          OptInts kv_lengths, OptIn block_table, int64_t heads, double scale,
                          int64_t pre_tokens, int64_t next_tokens, String layout, int64_t kv_heads,
                          int64_t sparse_mode, int64_t block_size, bool want_lse, Out out,
                          Out lse) {
  require(key.size() == 1 && value.size() == 1, "key and value as lists of ", key.size(), " and ",
          value.size(), " tensors are not emulated: pass one tensor each");
  // An empty tensor stands for none.
  const auto filled = [](OptIn tensor) {
    return tensor && tensor->numel() > 0 ? tensor : std::nullopt;
  };
  return {query,
          key[0],
          value[0],
          filled(mask),
          filled(block_table),
          query_lengths,
          kv_lengths,
          heads,
          kv_heads == 0 ? heads : kv_heads,
          scale,
          pre_tokens,
          next_tokens,
          layout,
          sparse_mode,
          block_size,
          out,
          want_lse ? static_cast<const Tensor&>(lse) : Tensor()};
}
}  // namespace

// Parameters after one another as torch_npu passes them. V3 adds three after the shared prefix
// length, V4 two more and a mode before the outputs.
#define FIA_HEAD                                                                              \
  In query, InList key, InList value, OptIn pse_shift, OptIn mask, OptInts query_lengths,     \
      OptInts kv_lengths, OptIn dequant_scale1, OptIn quant_scale1, OptIn dequant_scale2,     \
      OptIn quant_scale2, OptIn quant_offset2, OptIn antiquant_scale, OptIn antiquant_offset, \
      OptIn block_table, OptIn query_padding, OptIn kv_padding, OptIn key_antiquant_scale,    \
      OptIn key_antiquant_offset, OptIn value_antiquant_scale, OptIn value_antiquant_offset,  \
      OptIn key_prefix, OptIn value_prefix, Ints
#define FIA_TAIL                                                                                  \
  int64_t heads, double scale, int64_t pre_tokens, int64_t next_tokens, String layout,            \
      int64_t kv_heads, int64_t sparse_mode, int64_t, int64_t block_size, int64_t, bool want_lse, \
      int64_t, int64_t
#define FIA_ATTENTION                                                                            \
  infer_attention(query, key, value, mask, query_lengths, kv_lengths, block_table, heads, scale, \
                  pre_tokens, next_tokens, layout, kv_heads, sparse_mode, block_size, want_lse,  \
                  out, lse)
#define FIA_EXTRAS                                                                       \
  pse_shift, dequant_scale1, quant_scale1, dequant_scale2, quant_scale2, quant_offset2,  \
      antiquant_scale, antiquant_offset, query_padding, kv_padding, key_antiquant_scale, \
      key_antiquant_offset, value_antiquant_scale, value_antiquant_offset, key_prefix,   \
      value_prefix

namespace {
void check_infer_v2(FIA_HEAD, FIA_TAIL, Out out, Out lse) {
  refuse_extras(FIA_EXTRAS);
  check(FIA_ATTENTION);
}
void check_infer_v3(FIA_HEAD, OptIn query_rope, OptIn key_rope, OptIn key_rope_scale, FIA_TAIL,
                    Out out, Out lse) {
  refuse_extras(FIA_EXTRAS, query_rope, key_rope, key_rope_scale);
  check(FIA_ATTENTION);
}
void check_infer_v4(FIA_HEAD, OptIn query_rope, OptIn key_rope, OptIn key_rope_scale,
                    OptIn query_scale, OptIn sink, FIA_TAIL, int64_t, Out out, Out lse) {
  refuse_extras(FIA_EXTRAS, query_rope, key_rope, key_rope_scale, query_scale, sink);
  check(FIA_ATTENTION);
}
}  // namespace

// The unused parameters keep their names: they are the macro's.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
CHECKED_OPERATOR(aclnnFusedInferAttentionScoreV2, check_infer_v2,
                 [](FIA_HEAD, FIA_TAIL, Out out, Out lse) { run(FIA_ATTENTION); })
CHECKED_OPERATOR(aclnnFusedInferAttentionScoreV3, check_infer_v3,
                 [](FIA_HEAD, OptIn, OptIn, OptIn, FIA_TAIL, Out out, Out lse) {
                   run(FIA_ATTENTION);
                 })
CHECKED_OPERATOR(aclnnFusedInferAttentionScoreV4, check_infer_v4,
                 [](FIA_HEAD, OptIn, OptIn, OptIn, OptIn, OptIn, FIA_TAIL, int64_t, Out out,
                    Out lse) { run(FIA_ATTENTION); })
#pragma GCC diagnostic pop
MAX_WORKSPACE(aclnnFusedInferAttentionScoreV3)
MAX_WORKSPACE(aclnnFusedInferAttentionScoreV4)

// ---- FlashAttentionScore: what scaled_dot_product_attention and npu_fusion_attention call

namespace {
Attention flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, OptIn mask,
                          double scale, int64_t pre_tokens, int64_t next_tokens, int64_t heads,
                          String layout, int64_t sparse_mode, const Tensor& out) {
  const Layout kind = layout_of(layout);
  int64_t kv_heads = 0;
  switch (kind) {
    case Layout::kBnsd:
      kv_heads = key.size(1);
      break;
    case Layout::kBsnd:
      kv_heads = key.size(2);
      break;
    default:
      kv_heads = key.size(-1) * heads / query.size(-1);
  }
  return {query,    key,         value,      mask && mask->numel() > 0 ? mask : std::nullopt,
          {},       {},          {},         heads,
          kv_heads, scale,       pre_tokens, next_tokens,
          layout,   sparse_mode, 0,          out,
          {}};
}

void check_flash(In query, In key, In value, OptIn pse, OptIn drop_mask, OptIn, OptIn mask, Ints,
                 double scale, double keep, int64_t pre_tokens, int64_t next_tokens, int64_t heads,
                 String layout, int64_t, int64_t sparse_mode, OptOut, OptOut, OptOut, Out out) {
  require((!pse || pse->numel() == 0) && (!drop_mask || drop_mask->numel() == 0) && keep == 1.0,
          "pse and dropout are not emulated");
  check(flash_attention(query, key, value, mask, scale, pre_tokens, next_tokens, heads, layout,
                        sparse_mode, out));
}
}  // namespace

// Row statistics for the backward pass, [batch, heads, S, 8], each value eight times.
CHECKED_OPERATOR(aclnnFlashAttentionScore, check_flash,
                 [](In query, In key, In value, OptIn, OptIn, OptIn, OptIn mask, Ints, double scale,
                    double, int64_t pre_tokens, int64_t next_tokens, int64_t heads, String layout,
                    int64_t, int64_t sparse_mode, OptOut max_out, OptOut sum_out, OptOut, Out out) {
                   const Attention a =
                       flash_attention(query, key, value, mask, scale, pre_tokens, next_tokens,
                                       heads, layout, sparse_mode, out);
                   const bool statistics = max_out.defined() && max_out.numel() > 0;
                   for_each_sequence(
                       a, statistics,
                       [&](int64_t sequence, int64_t, int64_t rows, const Result& result) {
                         Tensor target =
                             sequence_of(out, a.query_layout(), heads, sequence, 0, rows);
                         if (!result.out.defined()) {
                           target.zero_();
                           return;
                         }
                         target.copy_(result.out);
                         if (statistics) {
                           Tensor max = max_out.select(0, sequence);
                           Tensor sum = sum_out.select(0, sequence);
                           max.copy_(result.max.transpose(0, 1));
                           sum.copy_((result.lse - result.max).exp().transpose(0, 1));
                         }
                       });
                 })
