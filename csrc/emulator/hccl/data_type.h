// SPDX-License-Identifier: Apache-2.0
// Data types of HCCL: sizes and names, and which of them can be reduced.
#pragma once

#include <cstddef>

#include "hccl/hccl.h"

namespace emu::hccl {

// Bytes of one element; 0 if the type is unknown.
size_t element_bytes(HcclDataType type);

// "float32"
const char* name_of(HcclDataType type);
const char* name_of(HcclReduceOp op);

// Whether HCCL reduces it on this chip. Source: torch_npu 2.13's check for chips before
// Ascend950, which is wider than the list in hccl.h by int16 and int64.
bool is_reducible(HcclDataType type);

}  // namespace emu::hccl
