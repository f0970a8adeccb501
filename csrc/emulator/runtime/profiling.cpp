// SPDX-License-Identifier: Apache-2.0
// The profiler's and the dumper's hooks. torch_npu calls some of them when it is loaded and at each
// launch while it profiles: they accept and drop. Our own records are counters.cpp and trace.cpp.
#include <cstdint>
#include <string_view>

#include "runtime/error.h"
#include "runtime/process.h"
#include "runtime/trace.h"

EMU_API uint64_t MsprofGetHashId(const char* text, size_t bytes) {
  return text ? std::hash<std::string_view>{}({text, bytes}) : 0;
}

EMU_API int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }

EMU_API int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }

EMU_API int32_t MsprofReportApi(uint32_t, const void*) { return 0; }

EMU_API int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }

EMU_API uint64_t MsprofSysCycleTime() { return static_cast<uint64_t>(emu::trace_now_ns()); }

// torch_npu initialises dumping for its "lite exception" dump, which has nothing to write here.
EMU_API aclError aclmdlInitDump() { return ACL_SUCCESS; }

EMU_API aclError aclmdlSetDump(const char*) {
  EMU_ENTER();
  return emu::fail_unsupported(__func__, "operators' tensors cannot be dumped");
}

EMU_API aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }
