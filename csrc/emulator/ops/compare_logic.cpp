// SPDX-License-Identifier: Apache-2.0
// Comparisons, logic on truth values and on bits, and choosing by a condition.
#include "ops/checks.h"
#include "ops/operator.h"

using namespace emu::ops;

#define COMPARE(Name, function)                                                                 \
  OPERATOR(aclnn##Name##Tensor,                                                                 \
           [](In self, In other, Out out) { at::function##_out(out, self, other); })            \
  OPERATOR(aclnn##Name##Scalar,                                                                 \
           [](In self, const Scalar& other, Out out) { at::function##_out(out, self, other); }) \
  OPERATOR(aclnnInplace##Name##Tensor,                                                          \
           [](InOut self, In other) { self.copy_(at::function(self, other)); })                 \
  OPERATOR(aclnnInplace##Name##Scalar,                                                          \
           [](InOut self, const Scalar& other) { self.copy_(at::function(self, other)); })

COMPARE(Eq, eq)
COMPARE(Ne, ne)
COMPARE(Lt, lt)
COMPARE(Le, le)
COMPARE(Gt, gt)
COMPARE(Ge, ge)
OPERATOR(aclnnLessScalar,
         [](In self, const Scalar& other, Out out) { at::lt_out(out, self, other); })

#define LOGIC(Name, function)                                                               \
  OPERATOR(aclnn##Name, [](In self, In other, Out out) { at::function(out, self, other); }) \
  OPERATOR(aclnnInplace##Name, [](InOut self, In other) { at::function(self, self, other); })
#define LOGIC_SCALAR(Name, function)                                \
  OPERATOR(aclnn##Name, [](In self, const Scalar& other, Out out) { \
    at::function(out, self, as_number(other));                      \
  })                                                                \
  OPERATOR(aclnnInplace##Name,                                      \
           [](InOut self, const Scalar& other) { at::function(self, self, as_number(other)); })

LOGIC(LogicalAnd, logical_and_out)
LOGIC(LogicalOr, logical_or_out)
LOGIC(LogicalXor, logical_xor_out)
LOGIC(BitwiseAndTensor, bitwise_and_out)
LOGIC(BitwiseOrTensor, bitwise_or_out)
LOGIC(BitwiseXorTensor, bitwise_xor_out)
LOGIC_SCALAR(BitwiseAndScalar, bitwise_and_out)
LOGIC_SCALAR(BitwiseOrScalar, bitwise_or_out)
LOGIC_SCALAR(BitwiseXorScalar, bitwise_xor_out)
LOGIC(LeftShift, bitwise_left_shift_out)
LOGIC(RightShift, bitwise_right_shift_out)
LOGIC_SCALAR(LeftShifts, bitwise_left_shift_out)

OPERATOR(aclnnLogicalNot, [](In self, Out out) { at::logical_not_out(out, self); })
OPERATOR(aclnnInplaceLogicalNot, [](InOut self) { at::logical_not_out(self, self); })
OPERATOR(aclnnBitwiseNot, [](In self, Out out) { at::bitwise_not_out(out, self); })
OPERATOR(aclnnInplaceBitwiseNot, [](InOut self) { at::bitwise_not_out(self, self); })

OPERATOR(aclnnIsFinite, [](In self, Out out) { out.copy_(at::isfinite(self)); })
OPERATOR(aclnnIsPosInf, [](In self, Out out) { at::isposinf_out(out, self); })
OPERATOR(aclnnIsNegInf, [](In self, Out out) { at::isneginf_out(out, self); })
OPERATOR(aclnnSignbit, [](In self, Out out) { at::signbit_out(out, self); })
OPERATOR(aclnnIsClose, [](In self, In other, double rtol, double atol, bool equal_nan, Out out) {
  out.copy_(at::isclose(self, other, rtol, atol, equal_nan));
})
OPERATOR(aclnnEqual, [](In self, In other, Out out) { out.fill_(at::equal(self, other)); })
OPERATOR(aclnnIsInTensorScalar,
         [](In elements, const Scalar& value, bool assume_unique, bool invert, Out out) {
           at::isin_out(out, elements, value, assume_unique, invert);
         })
OPERATOR(aclnnIsInScalarTensor,
         [](const Scalar& element, In values, bool assume_unique, bool invert, Out out) {
           at::isin_out(out, element, values, assume_unique, invert);
         })

OPERATOR(aclnnSWhere, [](In condition, In self, In other, Out out) {
  at::where_out(out, condition.to(at::kBool), self, other);
})
OPERATOR(aclnnInplaceMaskedFillScalar, [](InOut self, In mask, const Scalar& value) {
  self.masked_fill_(mask.to(at::kBool), value);
})
// ATen wants a 0-dim value; torch_npu also passes one of shape [1].
OPERATOR(aclnnInplaceMaskedFillTensor, [](InOut self, In mask, In value) {
  self.masked_fill_(mask.to(at::kBool), value.reshape({}));
})
OPERATOR(aclnnInplaceMaskedScatter,
         [](InOut self, In mask, In source) { self.masked_scatter_(mask.to(at::kBool), source); })
