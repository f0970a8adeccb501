// SPDX-License-Identifier: Apache-2.0
// Checks of phase 1 that several families share: shapes that broadcast, dtypes that an operator
// takes. They look at descriptors only, never at device data.
#pragma once

#include <initializer_list>

#include "ops/operator.h"

namespace emu::ops {

// A number as an ATen operand: 0-dim, and of the weak kind in type promotion.
Tensor as_number(const Scalar& value);

// The result's dtype category must not be above the output's (float into int), and the broadcast
// shape must be the output's.
void check_unary(In self, Out out);
// For functions whose result is not whole: an integer output cannot take it.
void check_float_unary(In self, Out out);
void check_binary(In self, In other, Out out);
void check_binary_alpha(In self, In other, const Scalar& alpha, Out out);
void check_inplace_binary(InOut self, In other);
// The broadcast of the operands must have the shape of `out`, whatever its dtype.
void check_broadcast(std::initializer_list<at::IntArrayRef> operands, at::IntArrayRef out);

// `argument` is the name in CANN's documentation.
void check_dtype(const char* argument, const Tensor& tensor,
                 std::initializer_list<ScalarType> supported);
void check_same_dtype(const char* first_name, const Tensor& first, const char* second_name,
                      const Tensor& second);
void check_dim(const char* argument, const Tensor& tensor, int64_t dim);

}  // namespace emu::ops
