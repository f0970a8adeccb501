// SPDX-License-Identifier: Apache-2.0
#include "hccl/reduction.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <concepts>
#include <cstdint>
#include <stdexcept>

namespace emu::hccl {
namespace {

// What the elements are added in: signed integers wrap, which C++ has for unsigned ones only.
template <typename T>
struct Arithmetic {
  using Type = float;
};
template <std::integral T>
struct Arithmetic<T> {
  using Type = uint64_t;
};

template <typename T, typename Combine>
void combine(void* result, const void* other, size_t count, Combine op) {
  auto* a = static_cast<T*>(result);
  const auto* b = static_cast<const T*>(other);
  for (size_t i = 0; i < count; ++i) a[i] = op(a[i], b[i]);
}

template <typename T>
void reduce(void* result, const void* other, size_t count, HcclReduceOp op) {
  using Wide = typename Arithmetic<T>::Type;
  switch (op) {
    case HCCL_REDUCE_SUM:
      return combine<T>(result, other, count, [](T a, T b) {
        return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
      });
    case HCCL_REDUCE_PROD:
      return combine<T>(result, other, count, [](T a, T b) {
        return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
      });
    case HCCL_REDUCE_MAX:
      return combine<T>(result, other, count, [](T a, T b) { return a < b ? b : a; });
    case HCCL_REDUCE_MIN:
      return combine<T>(result, other, count, [](T a, T b) { return b < a ? b : a; });
    default:
      throw std::logic_error("an unknown reduction");
  }
}

}  // namespace

void reduce_into(void* result, const void* other, size_t count, HcclDataType type,
                 HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
      return reduce<int8_t>(result, other, count, op);
    case HCCL_DATA_TYPE_INT16:
      return reduce<int16_t>(result, other, count, op);
    case HCCL_DATA_TYPE_INT32:
      return reduce<int32_t>(result, other, count, op);
    case HCCL_DATA_TYPE_INT64:
      return reduce<int64_t>(result, other, count, op);
    case HCCL_DATA_TYPE_FP16:
      return reduce<c10::Half>(result, other, count, op);
    case HCCL_DATA_TYPE_BFP16:
      return reduce<c10::BFloat16>(result, other, count, op);
    case HCCL_DATA_TYPE_FP32:
      return reduce<float>(result, other, count, op);
    default:
      throw std::logic_error("a type that cannot be reduced");
  }
}

}  // namespace emu::hccl
