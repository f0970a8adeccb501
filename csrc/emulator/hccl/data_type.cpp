// SPDX-License-Identifier: Apache-2.0
#include "hccl/data_type.h"

#include <algorithm>
#include <iterator>

namespace emu::hccl {
namespace {

struct Description {
  HcclDataType type;
  const char* name;
  size_t bytes;
  bool is_reducible;
};

constexpr Description kTypes[] = {
    {HCCL_DATA_TYPE_INT8, "int8", 1, true},        {HCCL_DATA_TYPE_INT16, "int16", 2, true},
    {HCCL_DATA_TYPE_INT32, "int32", 4, true},      {HCCL_DATA_TYPE_FP16, "float16", 2, true},
    {HCCL_DATA_TYPE_FP32, "float32", 4, true},     {HCCL_DATA_TYPE_INT64, "int64", 8, true},
    {HCCL_DATA_TYPE_UINT64, "uint64", 8, false},   {HCCL_DATA_TYPE_UINT8, "uint8", 1, false},
    {HCCL_DATA_TYPE_UINT16, "uint16", 2, false},   {HCCL_DATA_TYPE_UINT32, "uint32", 4, false},
    {HCCL_DATA_TYPE_FP64, "float64", 8, false},    {HCCL_DATA_TYPE_BFP16, "bfloat16", 2, true},
    {HCCL_DATA_TYPE_INT128, "int128", 16, false},  {HCCL_DATA_TYPE_HIF8, "hif8", 1, false},
    {HCCL_DATA_TYPE_FP8E4M3, "fp8e4m3", 1, false}, {HCCL_DATA_TYPE_FP8E5M2, "fp8e5m2", 1, false},
    {HCCL_DATA_TYPE_FP8E8M0, "fp8e8m0", 1, false},
};

const Description* find(HcclDataType type) {
  auto found = std::find_if(std::begin(kTypes), std::end(kTypes),
                            [&](const Description& each) { return each.type == type; });
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

size_t element_bytes(HcclDataType type) {
  const Description* found = find(type);
  return found ? found->bytes : 0;
}

const char* name_of(HcclDataType type) {
  const Description* found = find(type);
  return found ? found->name : "an unknown data type";
}

const char* name_of(HcclReduceOp op) {
  switch (op) {
    case HCCL_REDUCE_SUM:
      return "sum";
    case HCCL_REDUCE_PROD:
      return "prod";
    case HCCL_REDUCE_MAX:
      return "max";
    case HCCL_REDUCE_MIN:
      return "min";
    default:
      return "an unknown reduction";
  }
}

bool is_reducible(HcclDataType type) {
  const Description* found = find(type);
  return found && found->is_reducible;
}

}  // namespace emu::hccl
