// SPDX-License-Identifier: Apache-2.0
#include "hccl/result.h"

#include <iterator>

#include "runtime/api.h"

namespace emu::hccl {

HcclResult refuse(HcclResult result, const std::string& why) {
  fail(static_cast<aclError>(result), why);
  return result;
}

const char* name_of(HcclResult result) {
  static constexpr const char* kNames[] = {"HCCL_SUCCESS",
                                           "HCCL_E_PARA",
                                           "HCCL_E_PTR",
                                           "HCCL_E_MEMORY",
                                           "HCCL_E_INTERNAL",
                                           "HCCL_E_NOT_SUPPORT",
                                           "HCCL_E_NOT_FOUND",
                                           "HCCL_E_UNAVAIL",
                                           "HCCL_E_SYSCALL",
                                           "HCCL_E_TIMEOUT",
                                           "HCCL_E_OPEN_FILE_FAILURE",
                                           "HCCL_E_TCP_CONNECT",
                                           "HCCL_E_ROCE_CONNECT",
                                           "HCCL_E_TCP_TRANSFER",
                                           "HCCL_E_ROCE_TRANSFER",
                                           "HCCL_E_RUNTIME",
                                           "HCCL_E_DRV",
                                           "HCCL_E_PROFILING",
                                           "HCCL_E_CCE",
                                           "HCCL_E_NETWORK",
                                           "HCCL_E_AGAIN",
                                           "HCCL_E_REMOTE",
                                           "HCCL_E_SUSPENDING",
                                           "HCCL_E_OPRETRY_FAIL",
                                           "HCCL_E_OOM"};
  auto index = static_cast<size_t>(result);
  return index < std::size(kNames) ? kNames[index] : "an unknown HCCL result";
}

}  // namespace emu::hccl

EMU_API const char* HcclGetErrorString(HcclResult result) { return emu::hccl::name_of(result); }
