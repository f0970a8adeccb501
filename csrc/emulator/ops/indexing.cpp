// SPDX-License-Identifier: Apache-2.0
// Reading and writing by index or mask. Results whose shape depends on data use DynamicOut.
#include "ops/checks.h"
#include "ops/operator.h"

namespace {
using namespace emu::ops;

// ATen's indexing kernels take int64; torch_npu also passes int32.
Tensor as_index(const Tensor& index) {
  return index.scalar_type() == at::kInt ? index.to(at::kLong) : index;
}

// torch_npu puts an empty tensor of shape [0] where a dimension is not indexed. A real empty index
// looks the same if it has the dtype of `self`; callers take that case out first.
c10::List<std::optional<Tensor>> index_list(const TensorVector& indices) {
  c10::List<std::optional<Tensor>> list;
  for (const Tensor& index : indices) {
    list.push_back(index.numel() == 0 ? std::nullopt : std::optional<Tensor>(as_index(index)));
  }
  return list;
}

// Whether an index selects nothing, so that the write has no effect: one that is empty and cannot
// be a placeholder by its dtype or shape, or nothing but empty ones.
bool selects_nothing(const Tensor& self, const TensorVector& indices) {
  bool any_filled = false;
  for (const Tensor& index : indices) {
    if (index.numel() > 0) {
      any_filled = true;
    } else if (index.dim() != 1 || index.scalar_type() != self.scalar_type()) {
      return true;
    }
  }
  return !any_filled;
}

// Reduction numbers of aclnnScatter and aclnnScatterReduce, and ATen's names for them.
enum Reduction : int64_t { kReplace = 0, kAdd = 1, kMultiply = 2, kMax = 3, kMin = 4, kMean = 5 };

c10::string_view reduce_name(int64_t reduction) {
  static constexpr c10::string_view kNames[] = {"", "sum", "prod", "amax", "amin", "mean"};
  require(reduction >= kAdd && reduction <= kMean, "reduction ", reduction, " is not one of 1..5");
  return kNames[reduction];
}

void scatter(Tensor self, int64_t dim, const Tensor& index, const Tensor& source,
             int64_t reduction) {
  if (reduction == kReplace) {
    self.scatter_(dim, as_index(index), source);
  } else {
    self.scatter_reduce_(dim, as_index(index), source, reduce_name(reduction));
  }
}

void scatter_value(Tensor self, int64_t dim, const Tensor& index, const Scalar& value,
                   int64_t reduction) {
  if (reduction == kReplace) {
    self.scatter_(dim, as_index(index), value);
  } else {
    scatter(self, dim, index, at::full(index.sizes(), value, self.options()), reduction);
  }
}

// `out` may be `self`.
void start_from(Tensor out, const Tensor& self) {
  if (!out.is_alias_of(self) && out.const_data_ptr() != self.const_data_ptr()) {
    out.copy_(self);
  }
}

void check_gather(In self, int64_t dim, In index, Out out) {
  require(index.sizes() == out.sizes(), "index has shape ", index.sizes(), " but out has ",
          out.sizes());
  check_same_dtype("self", self, "out", out);
  check_dtype("index", index, {at::kLong, at::kInt});
  require(dim >= -std::max<int64_t>(self.dim(), 1) && dim < std::max<int64_t>(self.dim(), 1),
          "dim ", dim, " is outside the dimensions of self, of shape ", self.sizes());
}
}  // namespace

OPERATOR(aclnnIndex, [](In self, InList indices, Out out) {
  // Nothing to do, and the one case in which a real empty index must be told from a placeholder.
  if (out.numel() == 0) {
    return;
  }
  out.copy_(at::index(self, index_list(indices)));
})
OPERATOR(aclnnIndexPutImpl, [](InOut self, InList indices, In value, bool accumulate, bool) {
  if (!selects_nothing(self, indices)) {
    at::index_put_(self, index_list(indices), value, accumulate);
  }
})
OPERATOR(aclnnIndexSelect, [](In self, int64_t dim, In index, Out out) {
  at::index_select_out(out, self, dim, index);
})
CHECKED_OPERATOR(aclnnGather, check_gather, [](In self, int64_t dim, In index, Out out) {
  at::gather_out(out, self, dim, as_index(index));
})
OPERATOR(aclnnTake, [](In self, In index, Out out) { at::take_out(out, self, as_index(index)); })
OPERATOR(aclnnInplacePut, [](InOut self, In index, In source, bool accumulate) {
  self.put_(as_index(index), source, accumulate);
})
OPERATOR(aclnnEmbedding, [](In weight, In indices, Out out) {
  const Tensor rows = out.view({indices.numel(), weight.size(1)});
  Tensor target = rows;
  at::index_select_out(target, weight, 0, indices.reshape(-1));
})
OPERATOR(aclnnIndexAdd,
         [](In self, int64_t dim, In index, In source, const Scalar& alpha, Out out) {
           start_from(out, self);
           out.index_add_(dim, index, source, alpha);
         })
OPERATOR(aclnnIndexCopy, [](In self, int64_t dim, In index, In source, Out out) {
  start_from(out, self);
  out.index_copy_(dim, as_index(index), source);
})
OPERATOR(aclnnInplaceIndexCopy, [](InOut self, int64_t dim, In index, In source) {
  self.index_copy_(dim, as_index(index), source);
})
OPERATOR(aclnnIndexFill, [](In self, int64_t dim, In index, const Scalar& value, Out out) {
  start_from(out, self);
  out.index_fill_(dim, as_index(index), value);
})
OPERATOR(aclnnInplaceIndexFill, [](InOut self, int64_t dim, In index, const Scalar& value) {
  self.index_fill_(dim, as_index(index), value);
})
// The index is a host array in the two operators named "Tensor".
OPERATOR(aclnnIndexFillTensor, [](In self, int64_t dim, Ints index, const Scalar& value, Out out) {
  start_from(out, self);
  out.index_fill_(dim, at::tensor(index, at::kLong), value);
})
OPERATOR(aclnnInplaceIndexFillTensor, [](InOut self, int64_t dim, Ints index, const Scalar& value) {
  self.index_fill_(dim, at::tensor(index, at::kLong), value);
})

OPERATOR(aclnnScatter, [](In self, int64_t dim, In index, In source, int64_t reduction, Out out) {
  start_from(out, self);
  scatter(out, dim, index, source, reduction);
})
OPERATOR(aclnnInplaceScatter, [](InOut self, int64_t dim, In index, In source, int64_t reduction) {
  scatter(self, dim, index, source, reduction);
})
OPERATOR(aclnnScatterValue,
         [](In self, int64_t dim, In index, const Scalar& value, int64_t reduction, Out out) {
           start_from(out, self);
           scatter_value(out, dim, index, value, reduction);
         })
OPERATOR(aclnnInplaceScatterValue,
         [](InOut self, int64_t dim, In index, const Scalar& value, int64_t reduction) {
           scatter_value(self, dim, index, value, reduction);
         })
OPERATOR(aclnnScatterAdd, [](In self, int64_t dim, In index, In source, Out out) {
  start_from(out, self);
  out.scatter_add_(dim, as_index(index), source);
})
OPERATOR(aclnnScatterReduce, [](In self, int64_t dim, In index, In source, int64_t reduction,
                                bool include_self, Out out) {
  start_from(out, self);
  out.scatter_reduce_(dim, as_index(index), source, reduce_name(reduction), include_self);
})
OPERATOR(aclnnInplaceScatterReduce,
         [](InOut self, int64_t dim, In index, In source, int64_t reduction, bool include_self) {
           self.scatter_reduce_(dim, as_index(index), source, reduce_name(reduction), include_self);
         })
// indices [..., k] address the first k dimensions of self; updates [..., the other dimensions].
OPERATOR(aclnnScatterNdUpdate, [](InOut self, In indices, In updates) {
  c10::List<std::optional<Tensor>> list;
  for (int64_t j = 0; j < indices.size(-1); ++j) {
    list.push_back(indices.select(-1, j).to(at::kLong));
  }
  at::index_put_(self, list, updates, false);
})

OPERATOR(aclnnNonzero, [](In self, DynamicOut out) { out.set(at::nonzero(self)); })
OPERATOR(aclnnNonzeroV2, [](In self, DynamicOut out) { out.set(at::nonzero(self).t()); })
OPERATOR(aclnnMaskedSelect, [](In self, In mask, DynamicOut out) {
  out.set(at::masked_select(self, mask.to(at::kBool)));
})
