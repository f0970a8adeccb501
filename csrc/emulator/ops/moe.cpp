// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: gating, the grouping of token rows by expert, the grouped product and the
// weighted sum of what the experts gave. What the operators leave undefined is NaN here, so that a
// use of it shows.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/checks.h"
#include "ops/product.h"
#include "ops/rules.h"

namespace {
using namespace emu::ops;

constexpr int64_t kMaxTopK = 1024;
constexpr int64_t kMaxExperts = 10240;
// The exclusive bound of the last dimension of each factor of a grouped product.
constexpr int64_t kInnerLimit = 65536;
constexpr int64_t kMaxTensors = 128;
// Of aclnnMoeInitRoutingV3: the counts that are emulated are "count" of three kinds, and indices
// say for each source row where it went, or for each row where it came from.
constexpr int64_t kCount = 1;
constexpr int64_t kNotQuantized = -1;
constexpr int64_t kGather = 0;
// Of aclnnGroupedMatmulV4: one output tensor, rows are grouped, and how the group list counts.
constexpr int64_t kOneOutput = 2;
constexpr int64_t kGroupRows = 0;
constexpr int64_t kListIsCumulative = 0;
constexpr int64_t kListIsCounts = 1;

constexpr std::initializer_list<ScalarType> kFloats = {at::kFloat, at::kHalf, at::kBFloat16};

void make_undefined(const Tensor& rows) {
  if (rows.is_floating_point()) {
    Tensor(rows).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

std::vector<int64_t> host_values(const Tensor& integers) {
  const Tensor wide = integers.to(at::kLong).contiguous();
  const int64_t* values = wide.const_data_ptr<int64_t>();
  return {values, values + wide.numel()};
}

void check_gating(In x, OptIn finished, int64_t k, Out scores, Out experts, Out rows) {
  check_dtype("x", x, kFloats);
  enforce(rule::kGatingShape, x.dim() == 2 || x.dim() == 3, "x of shape ", x.sizes());
  enforce(rule::kGatingTopK, k > 0 && k <= x.size(-1) && k <= kMaxTopK, "k ", k, " for ",
          x.size(-1), " experts");
  if (finished) {
    check_dtype("finished", *finished, {at::kBool});
    enforce(rule::kGatingShape, finished->sizes() == x.sizes().slice(0, x.dim() - 1),
            "finished of shape ", finished->sizes(), " and x of shape ", x.sizes());
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = k;
  for (const Tensor* out :
       {static_cast<const Tensor*>(&scores), static_cast<const Tensor*>(&experts),
        static_cast<const Tensor*>(&rows)}) {
    enforce(rule::kGatingShape, out->sizes() == at::IntArrayRef(shape), "an output of shape ",
            out->sizes());
  }
  check_same_dtype("x", x, "y", scores);
  check_dtype("expert_idx", experts, {at::kInt});
  check_dtype("row_idx", rows, {at::kInt});
}

void gate(In x, OptIn finished, int64_t k, Out scores, Out experts, Out rows) {
  const Tensor probabilities = x.to(at::kFloat).softmax(-1);
  // Stable: of equal scores the expert with the lower number comes first.
  const auto sorted = at::sort(probabilities, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  scores.copy_(std::get<0>(sorted).narrow(-1, 0, k));
  Tensor chosen = std::get<1>(sorted).narrow(-1, 0, k);
  if (finished) {
    chosen = chosen.masked_fill(finished->unsqueeze(-1), x.size(-1));
  }
  experts.copy_(chosen);
  const int64_t count = scores.numel() / k;
  rows.copy_(at::arange(count * k).view({k, count}).t().reshape(rows.sizes()));
}

// What is emulated of aclnnMoeInitRoutingV3: no quantization, no capacity, all tokens.
void check_init_routing(In x, In experts, OptIn scale, OptIn offset, int64_t active, int64_t,
                        int64_t expert_num, int64_t drop_pad_mode, int64_t count_type,
                        bool count_wanted, int64_t quant_mode, Ints range, int64_t row_index_type,
                        Out expanded, Out row_index, Out counts, Out) {
  require(!scale && !offset && quant_mode == kNotQuantized,
          "quantization (scale, offset, quant_mode ", quant_mode, ") is not emulated");
  require(count_type == kCount && count_wanted, "expert_tokens_num_type ", count_type,
          " with expert_tokens_num_flag ", count_wanted, " is not emulated: use 1 with true");
  enforce(rule::kRoutingMode, drop_pad_mode == 0, "drop_pad_mode ", drop_pad_mode);
  enforce(rule::kRoutingMode, row_index_type == 0 || row_index_type == 1, "row_idx_type ",
          row_index_type);
  check_dtype("x", x, kFloats);
  check_dtype("expert_idx", experts, {at::kInt});
  enforce(rule::kRoutingShapes, x.dim() == 2 && experts.dim() == 2 && x.size(0) == experts.size(0),
          "x of shape ", x.sizes(), " and expert_idx of shape ", experts.sizes());
  enforce(rule::kExpertRange,
          expert_num > 0 && expert_num <= kMaxExperts && range.size() == 2 && range[0] >= 0 &&
              range[0] < range[1] && range[1] <= expert_num,
          "expert_num ", expert_num, " and active_expert_range ", at::IntArrayRef(range));
  const int64_t rows = experts.numel();
  require(active <= 0 || active >= rows, "active_num ", active, " below all ", rows,
          " rows is not emulated");
  check_same_dtype("x", x, "expanded_x", expanded);
  check_dtype("expanded_row_idx", row_index, {at::kInt});
  check_dtype("expert_token_cumsum_or_count", counts, {at::kLong});
  enforce(rule::kRoutingShapes,
          expanded.sizes() == at::IntArrayRef({rows, x.size(1)}) &&
              row_index.sizes() == at::IntArrayRef({rows}) &&
              counts.sizes() == at::IntArrayRef({range[1] - range[0]}),
          "outputs of shape ", expanded.sizes(), ", ", row_index.sizes(), " and ", counts.sizes());
}

void init_routing(In x, In experts, OptIn, OptIn, int64_t, int64_t, int64_t expert_num, int64_t,
                  int64_t, bool, int64_t, Ints range, int64_t row_index_type, Out expanded,
                  Out row_index, Out counts, Out scale) {
  const int64_t top_k = experts.size(1);
  const std::vector<int64_t> expert = host_values(experts);
  std::vector<std::vector<int64_t>> of_expert(static_cast<size_t>(range[1] - range[0]));
  for (size_t row = 0; row < expert.size(); ++row) {
    enforce(rule::kExpertRange, expert[row] >= 0 && expert[row] < expert_num, "expert ",
            expert[row], " for row ", static_cast<int64_t>(row) / top_k);
    if (expert[row] >= range[0] && expert[row] < range[1]) {
      of_expert[static_cast<size_t>(expert[row] - range[0])].push_back(static_cast<int64_t>(row));
    }
  }
  std::vector<int64_t> order;
  std::vector<int64_t> count;
  for (const std::vector<int64_t>& rows : of_expert) {
    order.insert(order.end(), rows.begin(), rows.end());
    count.push_back(static_cast<int64_t>(rows.size()));
  }
  const auto placed = static_cast<int64_t>(order.size());
  const Tensor source = at::tensor(order, at::kLong);
  expanded.narrow(0, 0, placed).copy_(x.index_select(0, source.div(top_k, "floor")));
  make_undefined(expanded.narrow(0, placed, expanded.size(0) - placed));
  if (row_index_type == kGather) {
    const Tensor destination = at::full({row_index.size(0)}, -1, at::kInt);
    destination.index_copy_(0, source, at::arange(placed, at::kInt));
    row_index.copy_(destination);
  } else {
    row_index.narrow(0, 0, placed).copy_(source);
  }
  counts.copy_(at::tensor(count, at::kLong));
  make_undefined(scale);
}

bool given(const TensorVector& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& t) { return t.defined() && t.numel() > 0; });
}

// What is emulated of the grouped product: rows of one tensor, one tensor of weights, no
// quantization and no activation.
void check_grouped(InList x, InList weight, InList bias, InList scale, InList offset,
                   InList antiquant_scale, InList antiquant_offset, InList token_scale,
                   OptIn groups, InList activation, InList activation_scale,
                   InList activation_offset, int64_t split_item, int64_t group_type,
                   int64_t list_type, int64_t activation_type, OutList out, OutList, OutList) {
  for (const TensorVector* unused :
       {&scale, &offset, &antiquant_scale, &antiquant_offset, &token_scale, &activation,
        &activation_scale, &activation_offset, &bias}) {
    require(!given(*unused), "a bias, quantization and activation arguments are not emulated");
  }
  require(activation_type == 0, "act_type ", activation_type, " is not emulated");
  require(x.size() <= kMaxTensors && weight.size() <= kMaxTensors, "more than ", kMaxTensors,
          " tensors in a list");
  require(x.size() == 1 && weight.size() == 1 && out.size() == 1 && groups &&
              split_item >= kOneOutput && group_type == kGroupRows,
          "only one x, one weight and one output with group_list, group_type 0 and split_item 2 or "
          "3 are emulated");
  check_dtype("x", x[0], kFloats);
  check_same_dtype("x", x[0], "weight", weight[0]);
  check_same_dtype("x", x[0], "y", out[0]);
  check_dtype("group_list", *groups, {at::kLong});
  const Tensor& rows = x[0];
  const Tensor& factors = weight[0];
  enforce(rule::kGroupedShapes,
          rows.dim() == 2 && factors.dim() == 3 && rows.size(1) == factors.size(1) &&
              out[0].sizes() == at::IntArrayRef({rows.size(0), factors.size(2)}),
          "x ", rows.sizes(), ", weight ", factors.sizes(), " and y ", out[0].sizes());
  enforce(rule::kGroupedInner, rows.size(1) < kInnerLimit && factors.size(2) < kInnerLimit, "x ",
          rows.sizes(), " and weight ", factors.sizes());
  enforce(rule::kGroupList,
          (list_type == kListIsCumulative || list_type == kListIsCounts) && groups->dim() == 1 &&
              groups->size(0) == factors.size(0) &&
              (list_type == kListIsCumulative || groups->size(0) > 1),
          "group_list of shape ", groups->sizes(), " and type ", list_type, " for ",
          factors.size(0), " weights");
}

void multiply_groups(const Tensor& rows, const Tensor& factors, const Tensor& groups,
                     bool cumulative, const Tensor& out) {
  int64_t begin = 0;
  const std::vector<int64_t> list = host_values(groups);
  for (size_t group = 0; group < list.size(); ++group) {
    const int64_t end = cumulative ? list[group] : begin + list[group];
    enforce(rule::kGroupList, end >= begin && end <= rows.size(0), "group ", group, " from row ",
            begin, " to ", end, " of ", rows.size(0));
    if (end > begin) {
      product_into(out.narrow(0, begin, end - begin), rows.narrow(0, begin, end - begin),
                   factors.select(0, static_cast<int64_t>(group)));
    }
    begin = end;
  }
  make_undefined(out.narrow(0, begin, out.size(0) - begin));
}

void check_unpermute(In rows, In index, OptIn weights, bool padded, OptInts, Out out) {
  require(!padded, "padded_mode is not emulated");
  check_dtype("permuted_tokens", rows, kFloats);
  check_dtype("sorted_indices", index, {at::kInt});
  const int64_t top_k = weights ? weights->size(-1) : 1;
  if (weights) {
    check_same_dtype("permuted_tokens", rows, "probs", *weights);
  }
  check_same_dtype("permuted_tokens", rows, "unpermuted_tokens", out);
  enforce(rule::kUnpermuteShapes,
          rows.dim() == 2 && index.dim() == 1 &&
              (!weights || (weights->dim() == 2 && weights->numel() == index.numel())) &&
              out.sizes() ==
                  at::IntArrayRef({index.numel() / std::max<int64_t>(top_k, 1), rows.size(1)}),
          "permuted_tokens ", rows.sizes(), ", sorted_indices ", index.sizes(), " and output ",
          out.sizes());
}

void unpermute(In rows, In index, OptIn weights, bool, OptInts, Out out) {
  for (const int64_t row : host_values(index)) {
    enforce(rule::kUnpermuteRange, row >= 0 && row < rows.size(0), row, " for ", rows.size(0),
            " rows");
  }
  const int64_t top_k = weights ? weights->size(1) : 1;
  Tensor parts = rows.index_select(0, index.to(at::kLong)).to(at::kFloat);
  parts = parts.view({out.size(0), top_k, rows.size(1)});
  if (weights) {
    parts = parts * weights->to(at::kFloat).unsqueeze(-1);
  }
  out.copy_(parts.sum(1));
}
}  // namespace

CHECKED_OPERATOR(aclnnMoeGatingTopKSoftmax, check_gating, gate)
CHECKED_OPERATOR(aclnnMoeInitRoutingV3, check_init_routing, init_routing)
CHECKED_OPERATOR(aclnnGroupedMatmulV4, check_grouped,
                 [](InList x, InList weight, InList, InList, InList, InList, InList, InList,
                    OptIn groups, InList, InList, InList, int64_t, int64_t, int64_t list_type,
                    int64_t, OutList out, OutList, OutList) {
                   multiply_groups(x[0], weight[0], *groups, list_type == kListIsCumulative,
                                   out[0]);
                 })
CHECKED_OPERATOR(aclnnMoeTokenUnpermute, check_unpermute, unpermute)
