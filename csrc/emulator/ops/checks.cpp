// SPDX-License-Identifier: Apache-2.0
// Shared checks of phase 1. Rules of one operator belong beside that operator.
#include "ops/checks.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

namespace emu::ops {

Tensor as_number(const Scalar& value) {
  Tensor number = at::scalar_to_tensor(value);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

void check_broadcast(std::initializer_list<at::IntArrayRef> operands, at::IntArrayRef out) {
  std::vector<int64_t> shape;
  for (const at::IntArrayRef operand : operands) {
    shape = at::infer_size(shape, operand);
  }
  require(at::IntArrayRef(shape) == out, "the operands broadcast to ", at::IntArrayRef(shape),
          " but the output has shape ", out);
}

namespace {
void check_castable(ScalarType from, ScalarType to) {
  require(at::canCast(from, to), "a result of dtype ", from, " does not fit an output of dtype ",
          to);
}
}  // namespace

void check_unary(In self, Out out) {
  require(self.sizes() == out.sizes(), "the input has shape ", self.sizes(), " but the output has ",
          out.sizes());
  check_castable(self.scalar_type(), out.scalar_type());
}

void check_float_unary(In self, Out out) {
  check_unary(self, out);
  require(!at::isIntegralType(out.scalar_type(), /*includeBool=*/true),
          "the result is floating, but the output has dtype ", out.scalar_type(),
          ": convert the input to a floating dtype first");
}

void check_binary(In self, In other, Out out) {
  check_broadcast({self.sizes(), other.sizes()}, out.sizes());
  check_castable(at::result_type(self, other), out.scalar_type());
}

void check_binary_alpha(In self, In other, const Scalar&, Out out) {
  check_binary(self, other, out);
}

void check_inplace_binary(InOut self, In other) {
  check_binary(self, other, Out(static_cast<const Tensor&>(self)));
}

void check_dtype(const char* argument, const Tensor& tensor,
                 std::initializer_list<ScalarType> supported) {
  if (std::find(supported.begin(), supported.end(), tensor.scalar_type()) == supported.end()) {
    std::ostringstream list;
    for (const ScalarType type : supported) {
      list << (type == *supported.begin() ? "" : ", ") << type;
    }
    require(false, argument, " has dtype ", tensor.scalar_type(), ", supported are ", list.str());
  }
}

void check_same_dtype(const char* first_name, const Tensor& first, const char* second_name,
                      const Tensor& second) {
  require(first.scalar_type() == second.scalar_type(), first_name, " has dtype ",
          first.scalar_type(), " and ", second_name, " has ", second.scalar_type(),
          "; they must be the same");
}

void check_dim(const char* argument, const Tensor& tensor, int64_t dim) {
  require(tensor.dim() == dim, argument, " must have ", dim, " dimensions and has shape ",
          tensor.sizes());
}

}  // namespace emu::ops
