// SPDX-License-Identifier: Apache-2.0
// Graph capture and replay: the room for it. Today every call that would begin or use a capture is
// refused, and "is this stream capturing" is answered with no.
//
// What is ready for it: every task reaches a stream through submit_to(), which is where a capture
// takes it instead; a Task is a copyable value whose body can run many times; Stream::push() queues
// without looking at a capture, for replays; external events (event.cpp) act when their task runs,
// so that they work inside a graph as they are.
#include "runtime/error.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace {

constexpr const char* kWhy =
    "graph capture is not built yet, run without graphs (enforce_eager=True)";

}  // namespace

EMU_API aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status,
                                        aclmdlRI* model) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(status);
  if (!emu::find_stream(handle, __func__)) return ACL_ERROR_RT_INVALID_HANDLE;
  *status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  if (model) *model = nullptr;
  return ACL_SUCCESS;
}

// Without a capture the mode of a thread has no effect, but it is remembered.
EMU_API aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(mode);
  static thread_local aclmdlRICaptureMode current = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
  std::swap(current, *mode);
  return ACL_SUCCESS;
}

// Not 207000: torch_npu takes that for an old driver, warns, and goes on without a capture.
#define EMU_REFUSED(name, ...)                                                   \
  EMU_API aclError name(__VA_ARGS__) {                                           \
    EMU_ENTER();                                                                 \
    return emu::fail(ACL_ERROR_API_NOT_SUPPORT, std::string(#name ": ") + kWhy); \
  }

EMU_REFUSED(aclmdlRICaptureBegin, aclrtStream, aclmdlRICaptureMode)
EMU_REFUSED(aclmdlRICaptureEnd, aclrtStream, aclmdlRI*)
EMU_REFUSED(aclmdlRICaptureToModelRIBegin, aclrtStream, aclmdlRI, aclmdlRICaptureMode)
EMU_REFUSED(aclmdlRICaptureTaskGrpBegin, aclrtStream)
EMU_REFUSED(aclmdlRICaptureTaskGrpEnd, aclrtStream, aclrtTaskGrp*)
EMU_REFUSED(aclmdlRICaptureTaskUpdateBegin, aclrtStream, aclrtTaskGrp)
EMU_REFUSED(aclmdlRICaptureTaskUpdateEnd, aclrtStream)
EMU_REFUSED(aclmdlRIExecuteAsync, aclmdlRI, aclrtStream)
EMU_REFUSED(aclmdlRIDestroy, aclmdlRI)
EMU_REFUSED(aclmdlRIDebugPrint, aclmdlRI)
EMU_REFUSED(aclmdlRIDebugJsonPrint, aclmdlRI, const char*, uint32_t)
EMU_REFUSED(aclmdlRIGetId, aclmdlRI, uint32_t*)
EMU_REFUSED(aclmdlRIAddCondTask, aclmdlRICondTaskParams, aclrtStream, uint32_t)
EMU_REFUSED(aclmdlRICondHandleCreate, aclmdlRI, uint32_t, aclmdlRICondHandleFlag,
            aclmdlRICondHandle*)
EMU_REFUSED(aclmdlRICondHandleGetCondPtr, aclmdlRICondHandle, uint64_t**)
