// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reductions, element by element.
#pragma once

#include <cstddef>

#include "hccl/hccl.h"

namespace emu::hccl {

// result[i] = result[i] op other[i], rounded to the type each time, as the reduction that the
// hardware does while it copies. The caller decides the order of the ranks, and so the result.
void reduce_into(void* result, const void* other, size_t count, HcclDataType type, HcclReduceOp op);

}  // namespace emu::hccl
