// SPDX-License-Identifier: Apache-2.0
// Ordering: sort, top-k, unique values, search in sorted data, and the sampling filters built on
// it.
#include <limits>

#include "ops/operator.h"

namespace {
using namespace emu::ops;

template <class Pair>
void copy_values_and_indices(const Pair& result, Tensor values, Tensor indices) {
  values.copy_(std::get<0>(result));
  indices.copy_(std::get<1>(result));
}

// Keeps of each row the `k` largest logits (ties at the k-th value stay) and then, of the softmax
// of what is left, the smallest set of largest probabilities that reaches `p`; always the largest
// one. logits [rows, vocab]; k [rows] integer; p [rows] floating. Dropped logits become -inf.
Tensor keep_top_k_top_p(const Tensor& logits, const std::optional<Tensor>& k,
                        const std::optional<Tensor>& p) {
  constexpr double kDropped = -std::numeric_limits<double>::infinity();
  const int64_t vocab = logits.size(-1);
  auto [sorted, order] = at::sort(logits.to(at::kFloat), /*stable=*/true, -1, /*descending=*/false);
  if (k) {
    const Tensor kept = k->to(at::kLong).reshape({-1, 1}).clamp(1, vocab);
    const Tensor threshold = sorted.gather(-1, vocab - kept);
    sorted = sorted.masked_fill(sorted.lt(threshold), kDropped);
  }
  if (p) {
    const Tensor below = sorted.softmax(-1).cumsum(-1).le(1 - p->to(at::kFloat).reshape({-1, 1}));
    below.select(-1, vocab - 1).fill_(false);
    sorted = sorted.masked_fill(below, kDropped);
  }
  return at::empty_like(sorted).scatter_(-1, order, sorted);
}

void check_top_k_top_p(In logits, OptIn p, OptIn k, Out out) {
  require(logits.dim() == 2, "logits must be [batch, vocab] and has shape ", logits.sizes());
  require(!p || p->numel() == logits.size(0), "p must have one value for each of the ",
          logits.size(0), " rows of logits and has shape ", p ? p->sizes() : at::IntArrayRef());
  require(!k || k->numel() == logits.size(0), "k must have one value for each of the ",
          logits.size(0), " rows of logits and has shape ", k ? k->sizes() : at::IntArrayRef());
  require(!p || p->scalar_type() == logits.scalar_type(), "p has dtype ",
          p ? p->scalar_type() : at::kFloat, " but logits has ", logits.scalar_type());
  require(!k || k->scalar_type() == at::kInt, "k must be int32");
  require(out.sizes() == logits.sizes(), "out has shape ", out.sizes(), " but logits has ",
          logits.sizes());
}
}  // namespace

OPERATOR(aclnnSort,
         [](In self, bool stable, int64_t dim, bool descending, Out values, Out indices) {
           copy_values_and_indices(at::sort(self, std::optional<bool>(stable), dim, descending),
                                   values, indices);
         })
OPERATOR(aclnnTopk,
         [](In self, int64_t k, int64_t dim, bool largest, bool sorted, Out values, Out indices) {
           copy_values_and_indices(at::topk(self, k, dim, largest, sorted), values, indices);
         })
OPERATOR(aclnnSearchSorted,
         [](In sorted, In self, bool out_int32, bool right, OptIn sorter, Out out) {
           out.copy_(at::searchsorted(sorted.contiguous(), self.contiguous(), out_int32, right,
                                      std::nullopt, sorter));
         })
OPERATOR(aclnnSearchSorteds, [](In sorted, const Scalar& self, bool out_int32, bool right,
                                OptIn sorter, Out out) {
  out.copy_(at::searchsorted(sorted.contiguous(), self, out_int32, right, std::nullopt, sorter));
})
OPERATOR(aclnnBucketize, [](In self, In boundaries, bool out_int32, bool right, Out out) {
  out.copy_(at::bucketize(self.contiguous(), boundaries.contiguous(), out_int32, right));
})

OPERATOR(aclnnUnique,
         [](In self, bool sorted, bool return_inverse, DynamicOut values, OptOut inverse) {
           const auto result = at::_unique(self, sorted, return_inverse);
           values.set(std::get<0>(result));
           if (return_inverse) {
             inverse.copy_(std::get<1>(result));
           }
         })
OPERATOR(aclnnUnique2, [](In self, bool sorted, bool return_inverse, bool return_counts,
                          DynamicOut values, OptOut inverse, DynamicOut counts) {
  const auto result = at::_unique2(self, sorted, return_inverse, return_counts);
  values.set(std::get<0>(result));
  // torch_npu asks for the inverse also where only counts were wanted, and drops it.
  if (return_inverse && inverse.numel() == self.numel()) {
    inverse.copy_(std::get<1>(result).reshape(inverse.sizes()));
  }
  if (return_counts) {
    counts.set(std::get<2>(result));
  }
})
// `dim` outside the dimensions stands for "flatten".
OPERATOR(aclnnUniqueConsecutive, [](In self, bool return_inverse, bool return_counts, int64_t dim,
                                    DynamicOut values, DynamicOut inverse, DynamicOut counts) {
  const std::optional<int64_t> axis =
      dim >= -self.dim() && dim < self.dim() ? std::optional<int64_t>(dim) : std::nullopt;
  const auto result = at::unique_consecutive(self, return_inverse, return_counts, axis);
  values.set(std::get<0>(result));
  if (return_inverse) {
    inverse.set(std::get<1>(result));
  }
  if (return_counts) {
    counts.set(std::get<2>(result));
  }
})
OPERATOR(aclnnUniqueDim, [](In self, bool sorted, bool return_inverse, int64_t dim,
                            DynamicOut values, DynamicOut inverse, DynamicOut counts) {
  const auto result = at::unique_dim(self, dim, sorted, return_inverse, true);
  values.set(std::get<0>(result));
  if (return_inverse) {
    inverse.set(std::get<1>(result));
  }
  counts.set(std::get<2>(result));
})

CHECKED_OPERATOR(aclnnApplyTopKTopP, check_top_k_top_p, [](In logits, OptIn p, OptIn k, Out out) {
  out.copy_(keep_top_k_top_p(logits, k, p));
})
// q is exponential noise of the shape of logits; without it the most likely token is taken.
OPERATOR(aclnnTopKTopPSample, [](In logits, In top_k, In top_p, OptIn q, double eps,
                                 bool want_logits, int64_t, Out selected, Out filtered) {
  const Tensor kept = keep_top_k_top_p(logits, top_k, top_p);
  const Tensor probabilities = kept.softmax(-1);
  const Tensor score = q ? probabilities / (q->to(at::kFloat).abs() + eps) : probabilities;
  selected.copy_(score.argmax(-1));
  if (want_logits) {
    filtered.copy_(kept);
  }
})
