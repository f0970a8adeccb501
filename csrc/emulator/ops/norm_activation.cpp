// SPDX-License-Identifier: Apache-2.0
// Activations, softmax, and normalisations with their fused additions. Half types compute in
// float32 and round once, as on the hardware.
#include "ops/checks.h"
#include "ops/operator.h"

namespace {
using namespace emu::ops;

Tensor in_float(const Tensor& x) { return x.to(at::kFloat); }

// x / sqrt(mean(x^2) + epsilon) over the trailing dimensions of `weight`, in float32.
Tensor rms_normalised(const Tensor& x, int64_t norm_dims, double epsilon, Tensor rstd_out) {
  std::vector<int64_t> dims;
  for (int64_t dim = x.dim() - norm_dims; dim < x.dim(); ++dim) {
    dims.push_back(dim);
  }
  const Tensor wide = in_float(x);
  const Tensor rstd = at::rsqrt(at::mean(wide * wide, dims, true) + epsilon);
  if (rstd_out.defined() && rstd_out.numel() > 0) {
    rstd_out.copy_(rstd.view(rstd_out.sizes()));
  }
  return wide * rstd;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor rstd_out) {
  return rms_normalised(x, weight.dim(), epsilon, rstd_out) * in_float(weight);
}

// The sum is rounded to the dtype of its output before it is normalised.
Tensor rounded_sum(const Tensor& first, const Tensor& second) {
  return first.scalar_type() == at::kFloat
             ? first + second
             : (in_float(first) + in_float(second)).to(first.scalar_type());
}

void check_norm(const char* name, const Tensor& x, const Tensor& weight) {
  check_dtype(name, x, {at::kFloat, at::kHalf, at::kBFloat16});
  require(weight.dim() >= 1 && weight.dim() <= x.dim() &&
              x.sizes().slice(x.dim() - weight.dim()) == weight.sizes(),
          "gamma of shape ", weight.sizes(), " is not the trailing shape of ", name, ", ",
          x.sizes());
}
void check_rms_norm(In x, In weight, double, Out out, Out) {
  check_norm("x", x, weight);
  require(out.sizes() == x.sizes(), "y has shape ", out.sizes(), " but x has ", x.sizes());
}
void check_add_rms_norm(In first, In second, In weight, double, Out, OptOut, Out) {
  check_norm("x1", first, weight);
  check_same_dtype("x1", first, "x2", second);
  require(first.sizes() == second.sizes(), "x1 has shape ", first.sizes(), " but x2 has ",
          second.sizes());
}

const char* gelu_name(int64_t approximate) { return approximate == 1 ? "tanh" : "none"; }

void softmax_into(Tensor out, const Tensor& self, int64_t dim) {
  if (out.scalar_type() == self.scalar_type()) {
    at::_softmax_out(out, self, dim, false);
  } else {
    out.copy_(at::softmax(self, dim, out.scalar_type()));
  }
}

void check_swiglu(In self, int64_t dim, Out out) {
  check_dtype("x", self, {at::kFloat, at::kHalf, at::kBFloat16});
  require(self.dim() > 0 && self.size(dim) % 2 == 0, "dimension ", dim, " of x, of shape ",
          self.sizes(), ", is not even");
  require(out.numel() * 2 == self.numel(), "out has shape ", out.sizes(), " for x of shape ",
          self.sizes());
}
}  // namespace

#define ACTIVATION(Name, function)                                         \
  OPERATOR(aclnn##Name, [](In self, Out out) { at::function(out, self); }) \
  OPERATOR(aclnnInplace##Name, [](InOut self) { at::function(self, self); })

ACTIVATION(Sigmoid, sigmoid_out)
ACTIVATION(Tanh, tanh_out)
ACTIVATION(Mish, mish_out)
ACTIVATION(Hardswish, hardswish_out)
ACTIVATION(Hardsigmoid, hardsigmoid_out)
OPERATOR(aclnnRelu, [](In self, Out out) { at::relu_out(out, self); })
OPERATOR(aclnnInplaceRelu, [](InOut self) { self.relu_(); })
OPERATOR(aclnnSilu, [](In self, Out out) { at::silu_out(out, self); })
// Always the tanh form (CANN documentation of aclnnGelu), and torch_npu calls this one on an A2 for
// gelu of either form.
OPERATOR(aclnnGelu, [](In self, Out out) { at::gelu_out(out, self, "tanh"); })
OPERATOR(aclnnGeluV2, [](In self, int64_t approximate, Out out) {
  at::gelu_out(out, self, gelu_name(approximate));
})
// x * sigmoid(1.702 x), the approximation that CANN names "fast".
OPERATOR(aclnnFastGelu, [](In self, Out out) {
  const Tensor wide = in_float(self);
  out.copy_(wide * at::sigmoid(wide * 1.702));
})
OPERATOR(aclnnGeluMul, [](In self, String approximate, Out out) {
  const auto halves = self.chunk(2, -1);
  out.copy_(at::gelu(in_float(halves[0]), approximate) * in_float(halves[1]));
})
OPERATOR(aclnnGeGluV3, [](In self, int64_t dim, int64_t approximate, bool activate_left, Out out,
                          Out activated) {
  const auto halves = self.chunk(2, dim);
  const Tensor gelu = at::gelu(in_float(halves[activate_left ? 0 : 1]), gelu_name(approximate));
  activated.copy_(gelu);
  out.copy_(gelu * in_float(halves[activate_left ? 1 : 0]));
})
CHECKED_OPERATOR(aclnnSwiGlu, check_swiglu, [](In self, int64_t dim, Out out) {
  const auto halves = self.chunk(2, dim);
  if (self.scalar_type() == at::kFloat) {
    at::silu_out(out, halves[0]);
    out.mul_(halves[1]);
  } else {
    out.copy_(at::silu(in_float(halves[0])) * in_float(halves[1]));
  }
})
OPERATOR(aclnnGlu, [](In self, int64_t dim, Out out) { at::glu_out(out, self, dim); })
OPERATOR(aclnnElu, [](In self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale,
                      Out out) { at::elu_out(out, self, alpha, scale, input_scale); })
OPERATOR(aclnnInplaceElu,
         [](InOut self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
           at::elu_(self, alpha, scale, input_scale);
         })
OPERATOR(aclnnCelu, [](In self, const Scalar& alpha, Out out) { out.copy_(at::celu(self, alpha)); })
OPERATOR(aclnnInplaceCelu, [](InOut self, const Scalar& alpha) { at::celu_(self, alpha); })
OPERATOR(aclnnLeakyRelu,
         [](In self, const Scalar& slope, Out out) { at::leaky_relu_out(out, self, slope); })
OPERATOR(aclnnInplaceLeakyRelu,
         [](InOut self, const Scalar& slope) { at::leaky_relu_(self, slope); })
OPERATOR(aclnnHardtanh, [](In self, const Scalar& low, const Scalar& high, Out out) {
  at::hardtanh_out(out, self, low, high);
})
OPERATOR(aclnnInplaceHardtanh,
         [](InOut self, const Scalar& low, const Scalar& high) { at::hardtanh_(self, low, high); })
OPERATOR(aclnnThreshold, [](In self, const Scalar& threshold, const Scalar& value, Out out) {
  at::threshold_out(out, self, threshold, value);
})
OPERATOR(aclnnInplaceThreshold, [](InOut self, const Scalar& threshold, const Scalar& value) {
  at::threshold_(self, threshold, value);
})
OPERATOR(aclnnSoftplus, [](In self, const Scalar& beta, const Scalar& threshold, Out out) {
  at::softplus_out(out, self, beta, threshold);
})
OPERATOR(aclnnSoftshrink,
         [](In self, const Scalar& lambda, Out out) { at::softshrink_out(out, self, lambda); })
OPERATOR(aclnnHardshrink,
         [](In self, const Scalar& lambda, Out out) { at::hardshrink_out(out, self, lambda); })
OPERATOR(aclnnPrelu, [](In self, In weight, Out out) { out.copy_(at::prelu(self, weight)); })
OPERATOR(aclnnLogSigmoid, [](In self, Out out) { at::log_sigmoid_out(out, self); })
OPERATOR(aclnnLogSigmoidForward, [](In self, Out out, OptOut) { at::log_sigmoid_out(out, self); })
OPERATOR(aclnnLogit, [](In self, double epsilon, Out out) {
  at::logit_out(out, self, epsilon < 0 ? std::nullopt : std::optional<double>(epsilon));
})

OPERATOR(aclnnSoftmax, [](In self, int64_t dim, Out out) { softmax_into(out, self, dim); })
OPERATOR(aclnnLogSoftmax, [](In self, int64_t dim, Out out) {
  out.copy_(at::log_softmax(self, dim, out.scalar_type()));
})
// mask true: dropped.
OPERATOR(aclnnScaledMaskedSoftmax, [](In self, In mask, double scale, bool fixed_triangle,
                                      Out out) {
  const Tensor scaled = in_float(self) * scale;
  const Tensor dropped =
      fixed_triangle
          ? at::ones({self.size(-2), self.size(-1)}, at::TensorOptions().dtype(at::kBool)).triu(1)
          : mask.to(at::kBool);
  out.copy_(scaled.masked_fill(dropped, -10000.0).softmax(-1));
})

CHECKED_OPERATOR(aclnnRmsNorm, check_rms_norm,
                 [](In x, In weight, double epsilon, Out out, Out rstd) {
                   out.copy_(rms_norm(x, weight, epsilon, rstd));
                 })
// The weight is stored as its difference from one.
CHECKED_OPERATOR(aclnnGemmaRmsNorm, check_rms_norm,
                 [](In x, In weight, double epsilon, Out out, Out rstd) {
                   out.copy_(rms_normalised(x, weight.dim(), epsilon, rstd) *
                             (in_float(weight) + 1));
                 })
CHECKED_OPERATOR(aclnnAddRmsNorm, check_add_rms_norm,
                 [](In first, In second, In weight, double epsilon, Out out, OptOut rstd,
                    Out sum_out) {
                   const Tensor sum = rounded_sum(first, second);
                   out.copy_(rms_norm(sum, weight, epsilon, rstd));
                   sum_out.copy_(sum);
                 })
// The first operand becomes the result, the second the sum.
OPERATOR(aclnnInplaceAddRmsNorm,
         [](InOut first, InOut second, In weight, double epsilon, OptOut rstd) {
           const Tensor sum = rounded_sum(first, second);
           first.copy_(rms_norm(sum, weight, epsilon, rstd));
           second.copy_(sum);
         })
OPERATOR(aclnnAddRmsNormCast, [](In first, In second, In weight, double epsilon, Out wide_out,
                                 Out out, OptOut rstd, Out sum_out) {
  const Tensor sum = rounded_sum(first, second);
  const Tensor result = rms_norm(sum, weight, epsilon, rstd).to(first.scalar_type());
  out.copy_(result);
  wide_out.copy_(result);
  sum_out.copy_(sum);
})
OPERATOR(aclnnLayerNorm, [](In self, Ints shape, OptIn weight, OptIn bias, double epsilon, Out out,
                            OptOut mean, OptOut rstd) {
  const auto result = at::native_layer_norm(self, shape, weight, bias, epsilon);
  out.copy_(std::get<0>(result));
  if (mean.defined() && mean.numel() > 0) {
    mean.copy_(std::get<1>(result).view(mean.sizes()));
  }
  if (rstd.defined() && rstd.numel() > 0) {
    rstd.copy_(std::get<2>(result).view(rstd.sizes()));
  }
})
OPERATOR(aclnnAddLayerNorm, [](In first, In second, In weight, In bias, OptIn extra, double epsilon,
                               bool want_sum, Out out, Out mean, Out rstd, Out sum_out) {
  Tensor sum = in_float(first) + in_float(second);
  if (extra) {
    sum = sum + in_float(*extra);
  }
  const auto result =
      at::native_layer_norm(sum, weight.sizes(), in_float(weight), in_float(bias), epsilon);
  out.copy_(std::get<0>(result));
  mean.copy_(std::get<1>(result).view(mean.sizes()));
  rstd.copy_(std::get<2>(result).view(rstd.sizes()));
  if (want_sum) {
    sum_out.copy_(sum);
  }
})
OPERATOR(aclnnGroupNorm,
         [](In self, OptIn weight, OptIn bias, int64_t batch, int64_t channels, int64_t positions,
            int64_t groups, double epsilon, Out out, Out mean, Out rstd) {
           const auto result = at::native_group_norm(self.contiguous(), weight, bias, batch,
                                                     channels, positions, groups, epsilon);
           out.copy_(std::get<0>(result));
           mean.copy_(std::get<1>(result).view(mean.sizes()));
           rstd.copy_(std::get<2>(result).view(rstd.sizes()));
         })
