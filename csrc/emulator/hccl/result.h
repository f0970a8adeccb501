// SPDX-License-Identifier: Apache-2.0
// How a call of the HCCL ABI fails on the host. What fails on the device is thrown as a
// DeviceError.
#pragma once

#include <string>

#include "hccl/hccl.h"

namespace emu::hccl {

// Sets the calling thread's message (aclGetRecentErrMsg) and returns `result`.
HcclResult refuse(HcclResult result, const std::string& why);

// "HCCL_E_TIMEOUT"
const char* name_of(HcclResult result);

}  // namespace emu::hccl
