// SPDX-License-Identifier: Apache-2.0
// Matrix products that accumulate in float32, as the cube unit does, whatever the factors' dtype.
#pragma once

#include "ops/operator.h"

namespace emu::ops {

// out = first @ second, with the shapes of at::matmul; rounded once, to out's dtype.
void product_into(Tensor out, const Tensor& first, const Tensor& second);

// out = beta * self + alpha * first @ second; two-dimensional factors, `self` broadcasts.
void product_into(Tensor out, const Tensor& self, const Tensor& first, const Tensor& second,
                  const Scalar& beta, const Scalar& alpha);

}  // namespace emu::ops
