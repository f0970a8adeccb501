// SPDX-License-Identifier: Apache-2.0
// Conversion between plain tensors and the fractal format NZ, in which the cube unit likes weights:
// a matrix [M, N] as blocks [N1, M1, 16, C0], padded with zeros. Operators that compute on NZ are
// not here; they refuse it (Loader::view).
#include <algorithm>
#include <memory>

#include "ops/operator.h"

namespace {
using namespace emu::ops;

constexpr int64_t kRowsOfBlock = 16;
constexpr int64_t kBytesOfBlockRow = 32;

bool is_nz(aclFormat format) { return format == ACL_FORMAT_FRACTAL_NZ; }

// The storage shape of [..., M, N].
std::vector<int64_t> nz_shape(const std::vector<int64_t>& sizes, int64_t columns_of_block) {
  const int64_t rows = sizes[sizes.size() - 2];
  const int64_t columns = sizes.back();
  std::vector<int64_t> shape(sizes.begin(), sizes.end() - 2);
  shape.insert(shape.end(),
               {(columns + columns_of_block - 1) / columns_of_block,
                (rows + kRowsOfBlock - 1) / kRowsOfBlock, kRowsOfBlock, columns_of_block});
  return shape;
}

// A view [..., M1 * 16, N1 * C0] of what is stored as [..., N1, M1, 16, C0] needs a copy: this one.
Tensor padded_matrix(const Tensor& nz) { return nz.movedim(-4, -2).flatten(-2).flatten(-3, -2); }

Tensor to_plain(const AnyFormat& source) {
  if (!is_nz(source.format)) {
    return source.storage;
  }
  return padded_matrix(source.storage)
      .slice(-2, 0, source.sizes[source.sizes.size() - 2])
      .slice(-1, 0, source.sizes.back());
}

void check_cast(AnyFormat source, AnyFormatOut target) {
  require(source.sizes == target.sizes, "the source has shape ", at::IntArrayRef(source.sizes),
          " but the target has ", at::IntArrayRef(target.sizes));
  require(source.storage.scalar_type() == target.storage.scalar_type(),
          "the dtypes of source and target differ");
  for (const AnyFormat* tensor : std::initializer_list<const AnyFormat*>{&source, &target}) {
    if (is_nz(tensor->format)) {
      require(tensor->sizes.size() >= 2 && tensor->storage.dim() >= 4 &&
                  tensor->storage.sizes() ==
                      at::IntArrayRef(nz_shape(tensor->sizes, tensor->storage.size(-1))),
              "storage of shape ", tensor->storage.sizes(), " is not NZ of ",
              at::IntArrayRef(tensor->sizes));
    } else {
      require(is_plain_format(tensor->format), "format ", static_cast<int>(tensor->format),
              " is not emulated: ND (2) and FRACTAL_NZ (29) are");
    }
  }
}
}  // namespace

// Where torch_npu learns how much memory the target needs. `dtype` gives the width of a block row.
// The caller owns `shape` (delete[]).
EMU_API int aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* source, int format, int dtype,
                                                     int64_t** shape, uint64_t* rank,
                                                     int* actual_format) {
  static constexpr const char* kName = "aclnnNpuFormatCastCalculateSizeAndFormat";
  try {
    require(source != nullptr && source->handle.valid() && shape != nullptr && rank != nullptr &&
                actual_format != nullptr,
            "an argument is null or dead");
    std::vector<int64_t> sizes = source->sizes;
    if (format == ACL_FORMAT_FRACTAL_NZ) {
      require(sizes.size() >= 2, "NZ needs a matrix, and the source has shape ",
              at::IntArrayRef(sizes));
      const auto width =
          static_cast<int64_t>(c10::elementSize(to_scalar_type(static_cast<aclDataType>(dtype))));
      sizes = nz_shape(sizes, kBytesOfBlockRow / std::min<int64_t>(width, kBytesOfBlockRow));
    } else {
      require(format == ACL_FORMAT_ND, "format ", format,
              " is not emulated: ND (2) and FRACTAL_NZ (29) are");
    }
    auto copy = std::make_unique<int64_t[]>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), copy.get());
    *shape = copy.release();
    *rank = sizes.size();
    *actual_format = format;
    return ACL_SUCCESS;
  } catch (const std::exception& error) {
    return refuse(kName, error);
  }
}

CHECKED_OPERATOR(aclnnNpuFormatCast, check_cast, [](AnyFormat source, AnyFormatOut target) {
  const Tensor plain = to_plain(source);
  if (!is_nz(target.format)) {
    target.storage.copy_(plain.view(target.storage.sizes()));
    return;
  }
  Tensor matrix = at::zeros_like(padded_matrix(target.storage));
  matrix.slice(-2, 0, plain.size(-2)).slice(-1, 0, plain.size(-1)).copy_(plain);
  const int64_t columns = target.storage.size(-1);
  target.storage.copy_(
      matrix.unflatten(-1, {-1, columns}).unflatten(-3, {-1, kRowsOfBlock}).movedim(-2, -4));
})
