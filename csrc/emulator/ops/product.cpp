// SPDX-License-Identifier: Apache-2.0
// Half factors are widened here and not left to the host's own half products: those of a processor
// without instructions for them are ten times slower, and every machine shall round alike.
#include "ops/product.h"

#include <algorithm>

namespace emu::ops {
namespace {

// Of the second factor, mostly a weight: what is widened stays in a core's cache.
constexpr int64_t kWidenedElements = int64_t{256} << 10;

// compute(columns of `second`, widened; the first of them) -> these columns of the result.
template <class Compute>
void by_columns(const Tensor& out, const Tensor& second, Compute compute) {
  const int64_t columns = second.size(1);
  const int64_t width =
      std::max<int64_t>(kWidenedElements / std::max<int64_t>(second.size(0), 1), 16);
  for (int64_t begin = 0; begin < columns; begin += width) {
    const int64_t count = std::min(width, columns - begin);
    out.narrow(-1, begin, count)
        .copy_(compute(second.narrow(1, begin, count).to(at::kFloat), begin));
  }
}

bool in_place(const Tensor& out, const Tensor& first) {
  return first.scalar_type() == at::kFloat && out.scalar_type() == at::kFloat;
}

}  // namespace

void product_into(Tensor out, const Tensor& first, const Tensor& second) {
  if (in_place(out, first)) {
    at::matmul_out(out, first, second);
    return;
  }
  const Tensor wide = first.to(at::kFloat);
  if (second.dim() != 2) {
    out.copy_(at::matmul(wide, second.to(at::kFloat)));
    return;
  }
  by_columns(out, second,
             [&](const Tensor& columns, int64_t) { return at::matmul(wide, columns); });
}

void product_into(Tensor out, const Tensor& self, const Tensor& first, const Tensor& second,
                  const Scalar& beta, const Scalar& alpha) {
  if (in_place(out, first) && self.scalar_type() == at::kFloat) {
    at::addmm_out(out, self, first, second, beta, alpha);
    return;
  }
  const Tensor wide = first.to(at::kFloat);
  by_columns(out, second, [&](const Tensor& columns, int64_t begin) {
    const bool whole = self.dim() == 0 || self.size(-1) == 1;
    const Tensor added = whole ? self : self.narrow(-1, begin, columns.size(1));
    return at::addmm(added.to(at::kFloat), wide, columns, beta, alpha);
  });
}

}  // namespace emu::ops
