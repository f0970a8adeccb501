// SPDX-License-Identifier: Apache-2.0
// Memory and events shared between processes: refused by name, each with what to do instead.
#include "runtime/error.h"
#include "runtime/process.h"

namespace {

constexpr const char* kWhy =
    "device memory and events cannot be shared between processes yet; copy through host memory";

}  // namespace

#define EMU_REFUSED(name, ...)                 \
  EMU_API aclError name(__VA_ARGS__) {         \
    EMU_ENTER();                               \
    return emu::fail_unsupported(#name, kWhy); \
  }

EMU_REFUSED(aclrtIpcMemGetExportKey, void*, size_t, char*, size_t, uint64_t)
EMU_REFUSED(aclrtIpcMemImportByKey, void**, const char*, uint64_t)
EMU_REFUSED(aclrtIpcMemSetImportPid, const char*, int32_t*, size_t)
EMU_REFUSED(aclrtIpcMemClose, const char*)
EMU_REFUSED(aclrtIpcGetEventHandle, aclrtEvent, aclrtIpcEventHandle*)
EMU_REFUSED(aclrtIpcOpenEventHandle, aclrtIpcEventHandle, aclrtEvent*)
EMU_REFUSED(aclrtMemExportToShareableHandle, aclrtDrvMemHandle, aclrtMemHandleType, uint64_t,
            uint64_t*)
EMU_REFUSED(aclrtMemImportFromShareableHandle, uint64_t, int32_t, aclrtDrvMemHandle*)
EMU_REFUSED(aclrtMemSetPidToShareableHandle, uint64_t, int32_t*, size_t)
