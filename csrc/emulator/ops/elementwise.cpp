// SPDX-License-Identifier: Apache-2.0
// Arithmetic on corresponding elements, with ATen's broadcasting and type promotion. Activations
// are in norm_activation.cpp, comparisons and bit logic in compare_logic.cpp.
#include "ops/checks.h"
#include "ops/operator.h"

namespace {
using namespace emu::ops;

// Rounding modes of aclnnDivMod.
std::optional<c10::string_view> rounding_mode(int mode) {
  switch (mode) {
    case 1:
      return "trunc";
    case 2:
      return "floor";
    default:
      return std::nullopt;
  }
}
}  // namespace

#define UNARY(Name, function)                                                                   \
  CHECKED_OPERATOR(aclnn##Name, check_unary, [](In self, Out out) { at::function(out, self); }) \
  OPERATOR(aclnnInplace##Name, [](InOut self) { at::function(self, self); })

UNARY(Abs, abs_out)
UNARY(Ceil, ceil_out)
UNARY(Floor, floor_out)
UNARY(Frac, frac_out)
UNARY(Neg, neg_out)
UNARY(Round, round_out)
UNARY(Sign, sgn_out)
UNARY(Trunc, trunc_out)

// Functions with a result that is not whole.
#define UNARY_FLOAT(Name, function)                                               \
  CHECKED_OPERATOR(aclnn##Name, check_float_unary,                                \
                   [](In self, Out out) { at::function(out, self); })             \
  CHECKED_OPERATOR(                                                               \
      aclnnInplace##Name, [](InOut self) { check_float_unary(self, Out(self)); }, \
      [](InOut self) { at::function(self, self); })

UNARY_FLOAT(Acos, acos_out)
UNARY_FLOAT(Acosh, acosh_out)
UNARY_FLOAT(Asin, asin_out)
UNARY_FLOAT(Asinh, asinh_out)
UNARY_FLOAT(Atan, atan_out)
UNARY_FLOAT(Atanh, atanh_out)
UNARY_FLOAT(Cos, cos_out)
UNARY_FLOAT(Cosh, cosh_out)
UNARY_FLOAT(Erf, erf_out)
UNARY_FLOAT(Erfc, erfc_out)
UNARY_FLOAT(Erfinv, erfinv_out)
UNARY_FLOAT(Exp, exp_out)
UNARY_FLOAT(Exp2, exp2_out)
UNARY_FLOAT(Expm1, expm1_out)
UNARY_FLOAT(Log, log_out)
UNARY_FLOAT(Log10, log10_out)
UNARY_FLOAT(Log1p, log1p_out)
UNARY_FLOAT(Log2, log2_out)
UNARY_FLOAT(Reciprocal, reciprocal_out)
UNARY_FLOAT(Rsqrt, rsqrt_out)
UNARY_FLOAT(Sin, sin_out)
UNARY_FLOAT(Sinc, sinc_out)
UNARY_FLOAT(Sinh, sinh_out)
UNARY_FLOAT(Sqrt, sqrt_out)
UNARY_FLOAT(Tan, tan_out)

OPERATOR(aclnnAngleV2, [](In self, Out out) { at::angle_out(out, self); })
OPERATOR(aclnnRoundDecimals,
         [](In self, int64_t decimals, Out out) { at::round_out(out, self, decimals); })
OPERATOR(aclnnInplaceRoundDecimals,
         [](InOut self, int64_t decimals) { at::round_out(self, self, decimals); })
OPERATOR(aclnnNanToNum, [](In self, float nan, float posinf, float neginf, Out out) {
  at::nan_to_num_out(out, self, nan, posinf, neginf);
})
OPERATOR(aclnnInplaceNanToNum, [](InOut self, float nan, float posinf, float neginf) {
  at::nan_to_num_out(self, self, nan, posinf, neginf);
})

// Two tensors, and a tensor and a scalar.
#define BINARY(Name, function)                                                         \
  CHECKED_OPERATOR(aclnn##Name, check_binary,                                          \
                   [](In self, In other, Out out) { at::function(out, self, other); }) \
  CHECKED_OPERATOR(aclnnInplace##Name, check_inplace_binary,                           \
                   [](InOut self, In other) { at::function(self, self, other); })
// ATen's out variants lack a scalar overload here and there: a 0-dim tensor that counts as a number
// in type promotion is the same.
#define BINARY_SCALAR(Name, function)                               \
  OPERATOR(aclnn##Name, [](In self, const Scalar& other, Out out) { \
    at::function(out, self, as_number(other));                      \
  })                                                                \
  OPERATOR(aclnnInplace##Name,                                      \
           [](InOut self, const Scalar& other) { at::function(self, self, as_number(other)); })

BINARY(Mul, mul_out)
BINARY(Div, div_out)
BINARY(FloorDivide, floor_divide_out)
BINARY(Minimum, minimum_out)
BINARY(Maximum, maximum_out)
BINARY(RemainderTensorTensor, remainder_out)
BINARY(FmodTensor, fmod_out)
BINARY(Atan2, atan2_out)
BINARY(PowTensorTensor, pow_out)
BINARY(LogAddExp, logaddexp_out)
BINARY(LogAddExp2, logaddexp2_out)
BINARY(Gcd, gcd_out)
BINARY(XLogYTensor, xlogy_out)
BINARY_SCALAR(Muls, mul_out)
BINARY_SCALAR(Divs, div_out)
BINARY_SCALAR(FloorDivides, floor_divide_out)
BINARY_SCALAR(RemainderTensorScalar, remainder_out)
BINARY_SCALAR(FmodScalar, fmod_out)
BINARY_SCALAR(XLogYScalarOther, xlogy_out)

OPERATOR(aclnnPowTensorScalar,
         [](In self, const Scalar& exponent, Out out) { at::pow_out(out, self, exponent); })
OPERATOR(aclnnInplacePowTensorScalar,
         [](InOut self, const Scalar& exponent) { at::pow_out(self, self, exponent); })
OPERATOR(aclnnPowScalarTensor,
         [](const Scalar& self, In exponent, Out out) { at::pow_out(out, self, exponent); })
OPERATOR(aclnnRemainderScalarTensor, [](const Scalar& self, In other, Out out) {
  at::remainder_out(out, as_number(self), other);
})
OPERATOR(aclnnXLogYScalarSelf,
         [](const Scalar& self, In other, Out out) { at::xlogy_out(out, self, other); })

CHECKED_OPERATOR(aclnnAdd, check_binary_alpha, [](In self, In other, const Scalar& alpha, Out out) {
  at::add_out(out, self, other, alpha);
})
CHECKED_OPERATOR(aclnnSub, check_binary_alpha, [](In self, In other, const Scalar& alpha, Out out) {
  at::sub_out(out, self, other, alpha);
})
CHECKED_OPERATOR(aclnnRsub, check_binary_alpha,
                 [](In self, In other, const Scalar& alpha, Out out) {
                   at::sub_out(out, other, self, alpha);
                 })
OPERATOR(aclnnAdds, [](In self, const Scalar& other, const Scalar& alpha, Out out) {
  at::add_out(out, self, as_number(other), alpha);
})
// The first operand is the number here.
OPERATOR(aclnnAddV3, [](const Scalar& self, In other, const Scalar& alpha, Out out) {
  at::add_out(out, as_number(self), other, alpha);
})
OPERATOR(aclnnSubs, [](In self, const Scalar& other, const Scalar& alpha, Out out) {
  at::sub_out(out, self, as_number(other), alpha);
})
OPERATOR(aclnnRsubs, [](In self, const Scalar& other, const Scalar& alpha, Out out) {
  at::sub_out(out, as_number(other), self, alpha);
})
OPERATOR(aclnnInplaceAdd,
         [](InOut self, In other, const Scalar& alpha) { at::add_out(self, self, other, alpha); })
OPERATOR(aclnnInplaceSub,
         [](InOut self, In other, const Scalar& alpha) { at::sub_out(self, self, other, alpha); })
OPERATOR(aclnnInplaceAdds, [](InOut self, const Scalar& other, const Scalar& alpha) {
  at::add_out(self, self, as_number(other), alpha);
})
OPERATOR(aclnnInplaceSubs, [](InOut self, const Scalar& other, const Scalar& alpha) {
  at::sub_out(self, self, as_number(other), alpha);
})
OPERATOR(aclnnAddRelu, [](In self, In other, const Scalar& alpha, Out out) {
  at::add_out(out, self, other, alpha).relu_();
})
OPERATOR(aclnnInplaceAddRelu,
         [](InOut self, In other, const Scalar& alpha) { self.add_(other, alpha).relu_(); })

OPERATOR(aclnnDivMod, [](In self, In other, int mode, Out out) {
  at::div_out(out, self, other, rounding_mode(mode));
})
OPERATOR(aclnnDivMods, [](In self, const Scalar& other, int mode, Out out) {
  at::div_out(out, self, as_number(other), rounding_mode(mode));
})
OPERATOR(aclnnInplaceDivMod, [](InOut self, In other, int mode) {
  at::div_out(self, self, other, rounding_mode(mode));
})
OPERATOR(aclnnInplaceDivMods, [](InOut self, const Scalar& other, int mode) {
  at::div_out(self, self, as_number(other), rounding_mode(mode));
})

OPERATOR(aclnnAddcmul, [](In self, In first, In second, const Scalar& value, Out out) {
  at::addcmul_out(out, self, first, second, value);
})
OPERATOR(aclnnAddcdiv, [](In self, In first, In second, const Scalar& value, Out out) {
  at::addcdiv_out(out, self, first, second, value);
})
OPERATOR(aclnnInplaceAddcmul, [](InOut self, In first, In second, const Scalar& value) {
  at::addcmul_out(self, self, first, second, value);
})
OPERATOR(aclnnInplaceAddcdiv, [](InOut self, In first, In second, const Scalar& value) {
  at::addcdiv_out(self, self, first, second, value);
})
OPERATOR(aclnnLerp,
         [](In self, In end, In weight, Out out) { at::lerp_out(out, self, end, weight); })
OPERATOR(aclnnLerps, [](In self, In end, const Scalar& weight, Out out) {
  at::lerp_out(out, self, end, weight);
})
OPERATOR(aclnnInplaceLerp,
         [](InOut self, In end, In weight) { at::lerp_out(self, self, end, weight); })
OPERATOR(aclnnInplaceLerps,
         [](InOut self, In end, const Scalar& weight) { at::lerp_out(self, self, end, weight); })

OPERATOR(aclnnClamp, [](In self, OptScalar low, OptScalar high, Out out) {
  at::clamp_out(out, self, low, high);
})
OPERATOR(aclnnClampMin,
         [](In self, const Scalar& low, Out out) { at::clamp_min_out(out, self, low); })
OPERATOR(aclnnClampMax,
         [](In self, const Scalar& high, Out out) { at::clamp_max_out(out, self, high); })
OPERATOR(aclnnInplaceClampMax,
         [](InOut self, const Scalar& high) { at::clamp_max_out(self, self, high); })
OPERATOR(aclnnClampTensor,
         [](In self, OptIn low, OptIn high, Out out) { at::clamp_out(out, self, low, high); })
OPERATOR(aclnnClampMinTensor, [](In self, In low, Out out) { at::clamp_min_out(out, self, low); })
OPERATOR(aclnnClampMaxTensor, [](In self, In high, Out out) { at::clamp_max_out(out, self, high); })
OPERATOR(aclnnInplaceClampMinTensor, [](InOut self, In low) { at::clamp_min_out(self, self, low); })
OPERATOR(aclnnInplaceClampMaxTensor,
         [](InOut self, In high) { at::clamp_max_out(self, self, high); })

OPERATOR(aclnnComplex, [](In real, In imag, Out out) { at::complex_out(out, real, imag); })
OPERATOR(aclnnPolar, [](In abs, In angle, Out out) { at::polar_out(out, abs, angle); })

// _foreach_ operators: one call for a list of tensors.
namespace {
template <class Function>
void for_each(const TensorVector& outs, Function function) {
  for (size_t i = 0; i < outs.size(); ++i) {
    function(i, outs[i]);
  }
}
}  // namespace
#define FOREACH_UNARY(Name, function)                                               \
  OPERATOR(aclnnForeach##Name, [](InList self, OutList out) {                       \
    for_each(out, [&](size_t i, Tensor result) { at::function(result, self[i]); }); \
  })
FOREACH_UNARY(Abs, abs_out)
FOREACH_UNARY(Exp, exp_out)
FOREACH_UNARY(Log, log_out)
FOREACH_UNARY(Neg, neg_out)
FOREACH_UNARY(Reciprocal, reciprocal_out)
FOREACH_UNARY(Sigmoid, sigmoid_out)
FOREACH_UNARY(Sign, sign_out)
FOREACH_UNARY(Sqrt, sqrt_out)
FOREACH_UNARY(Tanh, tanh_out)
OPERATOR(aclnnForeachCopy, [](InList source, OutList destination) {
  for_each(destination, [&](size_t i, Tensor result) { result.copy_(source[i]); });
})
OPERATOR(aclnnForeachZeroInplace,
         [](OutList self) { for_each(self, [](size_t, Tensor result) { result.zero_(); }); })
OPERATOR(aclnnForeachAddListV2, [](InList self, InList other, const Scalar& alpha, OutList out) {
  for_each(out, [&](size_t i, Tensor result) { at::add_out(result, self[i], other[i], alpha); });
})
OPERATOR(aclnnForeachSubListV2, [](InList self, InList other, const Scalar& alpha, OutList out) {
  for_each(out, [&](size_t i, Tensor result) { at::sub_out(result, self[i], other[i], alpha); });
})
#define FOREACH_BINARY_LIST(Name, function)                                                   \
  OPERATOR(aclnnForeach##Name, [](InList self, InList other, OutList out) {                   \
    for_each(out, [&](size_t i, Tensor result) { at::function(result, self[i], other[i]); }); \
  })
FOREACH_BINARY_LIST(MulList, mul_out)
FOREACH_BINARY_LIST(DivList, div_out)
FOREACH_BINARY_LIST(MaximumList, maximum_out)
FOREACH_BINARY_LIST(MinimumList, minimum_out)
#define FOREACH_BINARY_SCALAR(Name, function)                                                    \
  OPERATOR(aclnnForeach##Name, [](InList self, const Scalar& other, OutList out) {               \
    for_each(out,                                                                                \
             [&](size_t i, Tensor result) { at::function(result, self[i], as_number(other)); }); \
  })
FOREACH_BINARY_SCALAR(AddScalarV2, add_out)
FOREACH_BINARY_SCALAR(SubScalarV2, sub_out)
FOREACH_BINARY_SCALAR(MulScalarV2, mul_out)
FOREACH_BINARY_SCALAR(DivScalarV2, div_out)
FOREACH_BINARY_SCALAR(MaximumScalarV2, maximum_out)
FOREACH_BINARY_SCALAR(MinimumScalarV2, minimum_out)
