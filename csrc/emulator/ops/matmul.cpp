// SPDX-License-Identifier: Apache-2.0
// Matrix products and convolutions. The last argument of most is how the cube unit may round; here
// products accumulate in float32 (product.h).
#include "ops/checks.h"
#include "ops/operator.h"
#include "ops/product.h"

namespace {
using namespace emu::ops;

// CANN documentation of aclnnMm, aclnnMatmul, aclnnBatchMatMul: the cube unit has no integer or
// float64 product.
void check_factor(const char* name, const Tensor& factor) {
  check_dtype(name, factor, {at::kHalf, at::kBFloat16, at::kFloat});
}

void check_product(In self, In other, Out out, int8_t) {
  check_factor("self", self);
  check_factor("mat2", other);
  check_same_dtype("self", self, "mat2", other);
  const int64_t inner = self.size(-1);
  const int64_t other_inner = other.size(other.dim() > 1 ? -2 : -1);
  require(inner == other_inner, "self ", self.sizes(), " and mat2 ", other.sizes(),
          " have different inner dimensions");
  require(out.dim() == 0 || other.dim() < 2 || out.size(-1) == other.size(-1), "out has shape ",
          out.sizes(), " for self ", self.sizes(), " and mat2 ", other.sizes());
}

void check_addmm(In self, In first, In second, const Scalar&, const Scalar&, Out out, int8_t mode) {
  check_product(first, second, out, mode);
  require(self.dim() <= out.dim(), "self has shape ", self.sizes(), " for an output of shape ",
          out.sizes());
}

Tensor wide(const Tensor& factor) { return factor.to(at::kFloat); }

void multiply(In self, In other, Out out, int8_t) { product_into(out, self, other); }
}  // namespace

CHECKED_OPERATOR(aclnnMm, check_product, multiply)
CHECKED_OPERATOR(aclnnMatmul, check_product, multiply)
CHECKED_OPERATOR(aclnnBatchMatMul, check_product, multiply)
CHECKED_OPERATOR(aclnnMv, check_product, multiply)
OPERATOR(aclnnDot, [](In self, In other, Out out) { out.copy_(at::dot(self, other)); })
CHECKED_OPERATOR(aclnnAddmm, check_addmm,
                 [](In self, In first, In second, const Scalar& beta, const Scalar& alpha, Out out,
                    int8_t) { product_into(out, self, first, second, beta, alpha); })
OPERATOR(aclnnInplaceAddmm,
         [](InOut self, In first, In second, const Scalar& beta, const Scalar& alpha, int8_t) {
           product_into(self, self, first, second, beta, alpha);
         })
CHECKED_OPERATOR(aclnnBaddbmm, check_addmm,
                 [](In self, In first, In second, const Scalar& beta, const Scalar& alpha, Out out,
                    int8_t) {
                   out.copy_(at::baddbmm(wide(self), wide(first), wide(second), beta, alpha));
                 })
OPERATOR(aclnnAddbmm,
         [](In self, In first, In second, const Scalar& beta, const Scalar& alpha, Out out,
            int8_t) { out.copy_(at::addbmm(wide(self), wide(first), wide(second), beta, alpha)); })
// alpha before beta here.
OPERATOR(aclnnAddmv, [](In self, In matrix, In vector, const Scalar& alpha, const Scalar& beta,
                        Out out, int8_t) { at::addmv_out(out, self, matrix, vector, beta, alpha); })
OPERATOR(aclnnAddr, [](In self, In first, In second, const Scalar& beta, const Scalar& alpha,
                       Out out) { at::addr_out(out, self, first, second, beta, alpha); })
OPERATOR(aclnnInplaceAddr, [](InOut self, In first, In second, const Scalar& beta,
                              const Scalar& alpha) { self.addr_(first, second, beta, alpha); })
CHECKED_OPERATOR(
    aclnnConvolution,
    [](In input, In weight, OptIn, Ints, Ints, Ints, bool, Ints, int64_t, Out, int8_t) {
      check_factor("input", input);
      check_same_dtype("input", input, "weight", weight);
    },
    [](In input, In weight, OptIn bias, Ints stride, Ints padding, Ints dilation, bool transposed,
       Ints output_padding, int64_t groups, Out out, int8_t) {
      const std::optional<Tensor> added = bias ? std::optional(wide(*bias)) : std::nullopt;
      out.copy_(at::convolution(wide(input), wide(weight), added, stride, padding, dilation,
                                transposed, output_padding, groups));
    })
// x1 and x2 permuted before the product, the result after it.
OPERATOR(aclnnTransposeBatchMatMul,
         [](In first, In second, OptIn bias, OptIn scale, Ints first_order, Ints second_order,
            Ints result_order, int8_t, int32_t batch_split, Out out) {
           require(!bias && !scale && batch_split <= 1,
                   "bias, scale and batch_split_factor are not emulated");
           const Tensor product =
               at::bmm(wide(first.permute(first_order)), wide(second.permute(second_order)));
           out.copy_(product.permute(result_order));
         })
