// SPDX-License-Identifier: Apache-2.0
// Ordering: sort, top-k, unique values, search in sorted data, and the sampling filters built on
// it.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "ops/operator.h"

namespace {
using namespace emu::ops;

template <class Pair>
void copy_values_and_indices(const Pair& result, Tensor values, Tensor indices) {
  values.copy_(std::get<0>(result));
  indices.copy_(std::get<1>(result));
}

// A token of one row, ordered by logit and, among equal ones, by index: larger is kept longer.
struct Candidate {
  float logit;
  int32_t token;
  bool operator>(const Candidate& other) const {
    return logit != other.logit ? logit > other.logit : token > other.token;
  }
};

// Keeps the `k` largest logits (those that equal the k-th stay) and then, of the softmax of what is
// left, the fewest of the largest whose sum reaches `p`; the largest always. Writes -inf elsewhere.
// Does not sort the vocabulary: looks at the largest few, and at more only if `p` asks for more.
void filter_row(const float* logits, int64_t vocab, int64_t k, double p, float* out) {
  constexpr size_t kFirstLook = 256;
  std::vector<Candidate> order(static_cast<size_t>(vocab));
  for (int64_t token = 0; token < vocab; ++token) {
    order[token] = {logits[token], static_cast<int32_t>(token)};
  }
  const auto larger = std::greater<Candidate>();
  if (k < vocab) {
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), larger);
    const float smallest_kept = order[k - 1].logit;
    const auto end = std::partition(order.begin() + k, order.end(),
                                    [&](const Candidate& c) { return c.logit >= smallest_kept; });
    order.erase(end, order.end());
  }
  size_t kept = order.size();
  if (p < 1.0) {
    const float top = std::max_element(order.begin(), order.end(), [](auto& a, auto& b) {
                        return a.logit < b.logit;
                      })->logit;
    double total = 0;
    for (const Candidate& candidate : order) {
      total += std::exp(static_cast<double>(candidate.logit) - top);
    }
    double sum = 0;
    kept = 0;
    size_t sorted = 0;
    while (kept < order.size() && (kept == 0 || sum < p * total)) {
      if (kept == sorted) {
        const size_t look = std::min(order.size(), std::max(kFirstLook, sorted * 8));
        std::partial_sort(order.begin() + sorted, order.begin() + look, order.end(), larger);
        sorted = look;
      }
      sum += std::exp(static_cast<double>(order[kept].logit) - top);
      ++kept;
    }
  }
  std::fill(out, out + vocab, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < kept; ++i) {
    out[order[i].token] = order[i].logit;
  }
}

// logits [rows, vocab]; k [rows] integer; p [rows] floating. Float32 result.
Tensor keep_top_k_top_p(const Tensor& logits, const std::optional<Tensor>& k,
                        const std::optional<Tensor>& p) {
  const Tensor source = logits.to(at::kFloat).contiguous();
  const int64_t rows = source.size(0);
  const int64_t vocab = source.size(1);
  const Tensor kept = k ? k->to(at::kLong).contiguous() : Tensor();
  const Tensor share = p ? p->to(at::kDouble).contiguous() : Tensor();
  Tensor result = at::empty_like(source);
  const float* in = source.const_data_ptr<float>();
  float* out = result.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t count =
          k ? std::clamp<int64_t>(kept.const_data_ptr<int64_t>()[row], 1, vocab) : vocab;
      filter_row(in + row * vocab, vocab, count, p ? share.const_data_ptr<double>()[row] : 1.0,
                 out + row * vocab);
    }
  });
  return result;
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
