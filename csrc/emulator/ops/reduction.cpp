// SPDX-License-Identifier: Apache-2.0
// Operators that reduce dimensions, and scans along one. Half types accumulate in float32, as
// ATen's CPU kernels and the hardware both do.
#include <numeric>

#include "ops/operator.h"

namespace {
using namespace emu::ops;

// aclnn names all dimensions by an empty list.
std::vector<int64_t> dims_or_all(const Tensor& self, Ints dims) {
  if (!dims.empty()) {
    return dims;
  }
  std::vector<int64_t> all(self.dim());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// torch_npu takes int32 indices from some operators, ATen always gives int64.
template <class Pair>
void copy_values_and_indices(const Pair& result, Tensor values, Tensor indices) {
  values.copy_(std::get<0>(result));
  indices.copy_(std::get<1>(result));
}

// The result of a full reduction is 0-dim in ATen and may be of shape [1] here.
void copy_as(Tensor out, const Tensor& result) { out.copy_(result.reshape(out.sizes())); }

using Truth = Tensor (*)(const Tensor&, at::OptionalIntArrayRef, bool);
void reduce_truth(Truth function, In self, Ints dims, bool keepdim, Tensor out) {
  const std::vector<int64_t> all = dims_or_all(self, dims);
  copy_as(out, function(self, at::OptionalIntArrayRef(all), keepdim));
}
}  // namespace

OPERATOR(aclnnReduceSum, [](In self, Ints dims, bool keepdim, ScalarType dtype, Out out) {
  copy_as(out, at::sum(self, dims_or_all(self, dims), keepdim, dtype));
})
OPERATOR(aclnnReduceNansum, [](In self, Ints dims, bool keepdim, ScalarType dtype, Out out) {
  copy_as(out, at::nansum(self, dims_or_all(self, dims), keepdim, dtype));
})
OPERATOR(aclnnMean, [](In self, Ints dims, bool keepdim, ScalarType dtype, Out out) {
  copy_as(out, at::mean(self, dims_or_all(self, dims), keepdim, dtype));
})
OPERATOR(aclnnProd, [](In self, ScalarType dtype, Out out) { copy_as(out, at::prod(self, dtype)); })
OPERATOR(aclnnProdDim, [](In self, int64_t dim, bool keepdim, ScalarType dtype, Out out) {
  out.copy_(at::prod(self, dim, keepdim, dtype));
})
OPERATOR(aclnnAmax, [](In self, Ints dims, bool keepdim, Out out) {
  copy_as(out, at::amax(self, dims, keepdim));
})
OPERATOR(aclnnAmin, [](In self, Ints dims, bool keepdim, Out out) {
  copy_as(out, at::amin(self, dims, keepdim));
})
OPERATOR(aclnnAminmax, [](In self, Ints dims, bool keepdim, Out low, Out high) {
  copy_as(low, at::amin(self, dims, keepdim));
  copy_as(high, at::amax(self, dims, keepdim));
})
OPERATOR(aclnnAminmaxAll,
         [](In self, Out low, Out high) { copy_values_and_indices(at::aminmax(self), low, high); })
OPERATOR(aclnnAminmaxDim, [](In self, int64_t dim, bool keepdim, Out low, Out high) {
  copy_values_and_indices(at::aminmax(self, dim, keepdim), low, high);
})
OPERATOR(aclnnAny, [](In self, Ints dims, bool keepdim, Out out) {
  reduce_truth([](const Tensor& x, at::OptionalIntArrayRef d, bool k) { return at::any(x, d, k); },
               self, dims, keepdim, out);
})
OPERATOR(aclnnAll, [](In self, Ints dims, bool keepdim, Out out) {
  reduce_truth([](const Tensor& x, at::OptionalIntArrayRef d, bool k) { return at::all(x, d, k); },
               self, dims, keepdim, out);
})
OPERATOR(aclnnMax, [](In self, Out out) { copy_as(out, at::max(self)); })
OPERATOR(aclnnMin, [](In self, Out out) { copy_as(out, at::min(self)); })
OPERATOR(aclnnMaxDim, [](In self, int64_t dim, bool keepdim, Out values, Out indices) {
  copy_values_and_indices(at::max(self, dim, keepdim), values, indices);
})
OPERATOR(aclnnMinDim, [](In self, int64_t dim, bool keepdim, Out values, Out indices) {
  copy_values_and_indices(at::min(self, dim, keepdim), values, indices);
})
OPERATOR(aclnnArgMax, [](In self, int64_t dim, bool keepdim, Out out) {
  copy_as(out, at::argmax(self, dim, keepdim));
})
OPERATOR(aclnnArgMin, [](In self, int64_t dim, bool keepdim, Out out) {
  copy_as(out, at::argmin(self, dim, keepdim));
})
OPERATOR(aclnnMedian, [](In self, Out out) { copy_as(out, at::median(self)); })
OPERATOR(aclnnNanMedian, [](In self, Out out) { copy_as(out, at::nanmedian(self)); })
OPERATOR(aclnnMedianDim, [](In self, int64_t dim, bool keepdim, Out values, Out indices) {
  copy_values_and_indices(at::median(self, dim, keepdim), values, indices);
})
OPERATOR(aclnnNanMedianDim, [](In self, int64_t dim, bool keepdim, Out values, Out indices) {
  copy_values_and_indices(at::nanmedian(self, dim, keepdim), values, indices);
})
OPERATOR(aclnnKthvalue, [](In self, int64_t k, int64_t dim, bool keepdim, Out values, Out indices) {
  copy_values_and_indices(at::kthvalue(self, k, dim, keepdim), values, indices);
})
OPERATOR(aclnnVarCorrection, [](In self, Ints dims, int64_t correction, bool keepdim, Out out) {
  const std::vector<int64_t> all = dims_or_all(self, dims);
  copy_as(out, at::var(self, at::OptionalIntArrayRef(all), correction, keepdim));
})
OPERATOR(aclnnStd, [](In self, Ints dims, int64_t correction, bool keepdim, Out out) {
  const std::vector<int64_t> all = dims_or_all(self, dims);
  copy_as(out, at::std(self, at::OptionalIntArrayRef(all), correction, keepdim));
})
OPERATOR(aclnnVarMean, [](In self, Ints dims, int64_t correction, bool keepdim, Out var, Out mean) {
  const std::vector<int64_t> all = dims_or_all(self, dims);
  const auto result = at::var_mean(self, at::OptionalIntArrayRef(all), correction, keepdim);
  copy_as(var, std::get<0>(result));
  copy_as(mean, std::get<1>(result));
})
OPERATOR(aclnnStdMeanCorrection, [](In self, Ints dims, int64_t correction, bool keepdim, Out std,
                                    Out mean) {
  const std::vector<int64_t> all = dims_or_all(self, dims);
  const auto result = at::std_mean(self, at::OptionalIntArrayRef(all), correction, keepdim);
  copy_as(std, std::get<0>(result));
  copy_as(mean, std::get<1>(result));
})
OPERATOR(aclnnNorm, [](In self, const Scalar& p, Ints dims, bool keepdim, Out out) {
  copy_as(out, at::norm(self, p, dims_or_all(self, dims), keepdim));
})
OPERATOR(aclnnLinalgVectorNorm, [](In self, const Scalar& order, Ints dims, bool keepdim,
                                   ScalarType dtype, Out out) {
  const std::vector<int64_t> all = dims_or_all(self, dims);
  copy_as(out, at::linalg_vector_norm(self, order, at::OptionalIntArrayRef(all), keepdim, dtype));
})
OPERATOR(aclnnLogSumExp, [](In self, Ints dims, bool keepdim, Out out) {
  copy_as(out, at::logsumexp(self, dims_or_all(self, dims), keepdim));
})
OPERATOR(aclnnTrace, [](In self, Out out) { copy_as(out, at::trace(self)); })

OPERATOR(aclnnCumsum, [](In self, int64_t dim, ScalarType dtype, Out out) {
  at::cumsum_out(out, self, dim, dtype);
})
// The dimension is a scalar handle here.
OPERATOR(aclnnCumprod, [](In self, const Scalar& dim, ScalarType dtype, Out out) {
  at::cumprod_out(out, self, dim.toLong(), dtype);
})
OPERATOR(aclnnCummax, [](In self, int64_t dim, Out values, Out indices) {
  copy_values_and_indices(at::cummax(self, dim), values, indices);
})
OPERATOR(aclnnCummin, [](In self, int64_t dim, Out values, Out indices) {
  copy_values_and_indices(at::cummin(self, dim), values, indices);
})

// Counts. The length of the result is the caller's: torch_npu read the largest value before.
OPERATOR(aclnnBincount, [](In self, OptIn weights, int64_t minlength, Out out) {
  const Tensor counts = at::bincount(self.reshape(-1), weights, minlength);
  require(counts.numel() <= out.numel(), "the input holds ", counts.numel() - 1,
          ", above the last bin ", out.numel() - 1);
  out.zero_();
  out.slice(0, 0, counts.numel()).copy_(counts);
})
OPERATOR(aclnnHistc, [](In self, int64_t bins, const Scalar& min, const Scalar& max, Out out) {
  out.copy_(at::histc(at::isFloatingType(self.scalar_type()) ? self : self.to(at::kFloat), bins,
                      min, max));
})
