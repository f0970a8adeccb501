// SPDX-License-Identifier: Apache-2.0
// Copies and fills. What decides how a copy behaves is the memory, not the caller's word:
//
//   aclrtMemcpy                         the calling thread copies, now; waits for no stream
//   aclrtMemcpyAsync, host page-locked  the stream copies, later; the host memory stays in use
//   aclrtMemcpyAsync, host pageable     the stream copies, and the call returns when it has
//   aclrtMemcpyAsync, device to device  the stream copies, later
//   aclrtMemcpyAsync, host to host      refused (207000)
//
// Source: CANN 9.1.0 runtime API documentation of aclrtMemcpyAsync.
#include <cstring>
#include <vector>

#include "checker/host_buffers.h"
#include "checker/order.h"
#include "runtime/capture.h"
#include "runtime/counters.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace emu {
namespace {

struct Copy {
  void* destination;
  const void* source;
  size_t bytes;
  CopyDirection direction;
  bool pinned;  // the host side, if there is one; both, if both are host
};

bool is_host(MemoryKind kind) {
  return kind == MemoryKind::kPinned || kind == MemoryKind::kPageable;
}

const char* memory_name(MemoryKind kind) {
  return kind == MemoryKind::kDevice ? "device memory" : "host memory";
}

// Fills in `copy`, or says why there is none.
aclError plan(const char* api, void* destination, size_t destination_bytes, const void* source,
              size_t bytes, aclrtMemcpyKind kind, Copy* copy) {
  if (!destination) return fail_null(api, "dst");
  if (!source) return fail_null(api, "src");
  auto refuse = [&](const std::string& why) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": " + why);
  };
  if (bytes > destination_bytes) {
    return refuse("count " + std::to_string(bytes) + " is more than destMax " +
                  std::to_string(destination_bytes));
  }
  MemoryRange to = classify(destination, bytes);
  MemoryRange from = classify(source, bytes);
  if (to.kind == MemoryKind::kInvalid) return refuse("the destination " + to.why);
  if (from.kind == MemoryKind::kInvalid) return refuse("the source " + from.why);

  // What each side has to be, so that a wrong kind is not silently corrected. The device reaches
  // page-locked host memory too, hence it passes for device memory.
  bool to_is_device = to.kind == MemoryKind::kDevice;
  bool from_is_device = from.kind == MemoryKind::kDevice;
  bool to_may_be_device = to_is_device || to.kind == MemoryKind::kPinned;
  bool from_may_be_device = from_is_device || from.kind == MemoryKind::kPinned;
  bool fits = true;
  *copy = {destination, source, bytes, CopyDirection::kH2H, false};
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_DEVICE:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
      copy->direction = CopyDirection::kH2D;
      fits = !from_is_device && to_may_be_device;
      break;
    case ACL_MEMCPY_DEVICE_TO_HOST:
      copy->direction = CopyDirection::kD2H;
      fits = from_may_be_device && !to_is_device;
      break;
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INNER_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INTER_DEVICE_TO_DEVICE:
      copy->direction = CopyDirection::kD2D;
      fits = from_may_be_device && to_may_be_device;
      break;
    case ACL_MEMCPY_HOST_TO_HOST:
      fits = !from_is_device && !to_is_device;
      break;
    case ACL_MEMCPY_DEFAULT:
      copy->direction = from_is_device ? (to_is_device ? CopyDirection::kD2D : CopyDirection::kD2H)
                                       : (to_is_device ? CopyDirection::kH2D : CopyDirection::kH2H);
      break;
    default:
      return refuse("unknown kind " + std::to_string(kind));
  }
  if (!fits) {
    return refuse("kind " + std::to_string(kind) + " does not fit a copy from " +
                  memory_name(from.kind) + " to " + memory_name(to.kind));
  }
  switch (copy->direction) {
    case CopyDirection::kH2D:
      copy->pinned = from.kind == MemoryKind::kPinned;
      break;
    case CopyDirection::kD2H:
      copy->pinned = to.kind == MemoryKind::kPinned;
      break;
    case CopyDirection::kH2H:
      copy->pinned = from.kind == MemoryKind::kPinned && to.kind == MemoryKind::kPinned;
      break;
    case CopyDirection::kD2D:
      break;
  }
  return ACL_SUCCESS;
}

// Copies now, on the calling thread.
void perform(const Copy& copy) {
  std::memmove(host_alias(copy.destination), host_alias(copy.source), copy.bytes);
}

// Poison and failure concern every copy that a device takes part in.
aclError check_device(const char* api) {
  const Device* device = current_device(api);
  return device ? check_usable(*device, api) : ACL_ERROR_RT_CONTEXT_NULL;
}

// Synchronous work on device memory, where a capture forbids it.
aclError refuse_unsafe(const char* api) {
  const Device* device = current_device(api);
  return device ? refuse_if_unsafe(*device, api, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT)
                : ACL_ERROR_RT_CONTEXT_NULL;
}

const char* task_name(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kH2D:
      return "memcpy_h2d";
    case CopyDirection::kD2H:
      return "memcpy_d2h";
    case CopyDirection::kH2H:
      return "memcpy_h2h";
    case CopyDirection::kD2D:
      break;
  }
  return "memcpy_d2d";
}

aclError copy_now(const char* api, void* destination, size_t destination_bytes, const void* source,
                  size_t bytes, aclrtMemcpyKind kind) {
  Copy copy;
  if (aclError error = plan(api, destination, destination_bytes, source, bytes, kind, &copy)) {
    return error;
  }
  if (copy.direction != CopyDirection::kH2H) {
    if (aclError error = check_device(api)) return error;
    if (aclError error = refuse_unsafe(api)) return error;
  }
  count_copy(copy.direction, false, copy.pinned, bytes);
  check::host_touches(api, source, destination, bytes);
  perform(copy);
  return ACL_SUCCESS;
}

aclError copy_on_stream(const char* api, void* destination, size_t destination_bytes,
                        const void* source, size_t bytes, aclrtMemcpyKind kind,
                        aclrtStream handle) {
  Copy copy;
  if (aclError error = plan(api, destination, destination_bytes, source, bytes, kind, &copy)) {
    return error;
  }
  if (copy.direction == CopyDirection::kH2H) {
    return fail_unsupported(api, "CANN has no asynchronous copy from host to host");
  }
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (!bytes) return check_usable(stream->device(), api);
  bool is_pageable = copy.direction != CopyDirection::kD2D && !copy.pinned;
  if (is_pageable) {
    if (aclError error =
            refuse_if_unsafe(stream->device(), api, ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC)) {
      return error;
    }
    // Whatever the mode: what waits for a stream cannot be captured on it.
    if (aclError error = refuse_if_capturing(*stream, api)) return error;
  }
  bool is_captured = stream->graph_use.kind == GraphUse::Kind::kCapture;
  Task task{task_name(copy.direction),
            TaskKind::kCopy,
            [copy] { perform(copy); },
            {{copy.source, bytes, false}, {copy.destination, bytes, true}},
            copy.direction != CopyDirection::kD2D};
  if (check::on()) {
    check::submitting(*stream, task, is_captured);
    if (copy.pinned && !is_captured) {
      bool device_writes = copy.direction == CopyDirection::kD2H;
      check::copy_submitted(task.operation, device_writes ? destination : source, bytes,
                            device_writes);
    }
    if (is_pageable) {
      check::copy_is_not_pinned(task.operation, copy.direction == CopyDirection::kD2H);
      if (aclError error = check_usable(stream->device(), api)) return error;
    }
  }
  auto operation = task.operation;
  if (aclError error = submit_to(*stream, std::move(task))) {
    check::copy_dropped(operation);
    return error;
  }
  if (!is_captured) count_copy(copy.direction, true, copy.pinned, bytes);
  return is_pageable ? stream->wait(-1, api) : ACL_SUCCESS;
}

// What aclrtMemcpyBatch takes, checked.
struct Batch {
  void** destinations;
  size_t* destination_bytes;
  void** sources;
  size_t* bytes;
  size_t count;
  size_t* fail_index;
};

template <typename CopyOne>
aclError copy_batch(const char* api, const Batch& batch, CopyOne copy_one) {
  if (!batch.destinations || !batch.destination_bytes || !batch.sources || !batch.bytes) {
    return fail_null(api, "dsts, destMaxs, srcs or sizes");
  }
  for (size_t i = 0; i < batch.count; ++i) {
    if (aclError error = copy_one(i)) {
      if (batch.fail_index) *batch.fail_index = i;
      return error;
    }
  }
  return ACL_SUCCESS;
}

aclError check_fill(const char* api, void* address, size_t maximum_bytes, size_t bytes) {
  if (!address) return fail_null(api, "devPtr");
  if (bytes > maximum_bytes) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": count " + std::to_string(bytes) +
                                                " is more than maxCount " +
                                                std::to_string(maximum_bytes));
  }
  MemoryRange range = classify(address, bytes);
  if (range.kind == MemoryKind::kInvalid) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": " + range.why);
  }
  return is_host(range.kind) ? ACL_SUCCESS : check_device(api);
}

}  // namespace
}  // namespace emu

EMU_API aclError aclrtMemcpy(void* destination, size_t destination_bytes, const void* source,
                             size_t bytes, aclrtMemcpyKind kind) {
  EMU_ENTER();
  return emu::copy_now(__func__, destination, destination_bytes, source, bytes, kind);
}

EMU_API aclError aclrtMemcpyAsync(void* destination, size_t destination_bytes, const void* source,
                                  size_t bytes, aclrtMemcpyKind kind, aclrtStream stream) {
  EMU_ENTER();
  return emu::copy_on_stream(__func__, destination, destination_bytes, source, bytes, kind, stream);
}

EMU_API aclError aclrtMemcpyAsyncWithCondition(void* destination, size_t destination_bytes,
                                               const void* source, size_t bytes,
                                               aclrtMemcpyKind kind, aclrtStream stream) {
  EMU_ENTER();
  return emu::copy_on_stream(__func__, destination, destination_bytes, source, bytes, kind, stream);
}

EMU_API aclError aclrtMemcpyBatch(void** destinations, size_t* destination_bytes, void** sources,
                                  size_t* bytes, size_t count, aclrtMemcpyBatchAttr*, size_t*,
                                  size_t, size_t* fail_index) {
  EMU_ENTER();
  return emu::copy_batch(
      __func__, {destinations, destination_bytes, sources, bytes, count, fail_index},
      [&](size_t i) {
        return emu::copy_now("aclrtMemcpyBatch", destinations[i], destination_bytes[i], sources[i],
                             bytes[i], ACL_MEMCPY_DEFAULT);
      });
}

EMU_API aclError aclrtMemcpyBatchAsync(void** destinations, size_t* destination_bytes,
                                       void** sources, size_t* bytes, size_t count,
                                       aclrtMemcpyBatchAttr*, size_t*, size_t, size_t* fail_index,
                                       aclrtStream stream) {
  EMU_ENTER();
  return emu::copy_batch(
      __func__, {destinations, destination_bytes, sources, bytes, count, fail_index},
      [&](size_t i) {
        return emu::copy_on_stream("aclrtMemcpyBatchAsync", destinations[i], destination_bytes[i],
                                   sources[i], bytes[i], ACL_MEMCPY_DEFAULT, stream);
      });
}

EMU_API aclError aclrtMemset(void* address, size_t maximum_bytes, int32_t value, size_t bytes) {
  EMU_ENTER();
  if (aclError error = emu::check_fill(__func__, address, maximum_bytes, bytes)) return error;
  if (aclError error = emu::refuse_unsafe(__func__)) return error;
  emu::count(emu::Counter::kMemsets);
  emu::check::host_touches(__func__, nullptr, address, bytes);
  std::memset(emu::host_alias(address), value, bytes);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtMemsetAsync(void* address, size_t maximum_bytes, int32_t value, size_t bytes,
                                  aclrtStream stream) {
  EMU_ENTER();
  if (aclError error = emu::check_fill(__func__, address, maximum_bytes, bytes)) return error;
  return emu::submit(
      stream, {"memset",
               emu::TaskKind::kMemset,
               [address, value, bytes] { std::memset(emu::host_alias(address), value, bytes); },
               {{address, bytes, true}}});
}

// Cache maintenance: there is no cache to maintain.
EMU_API aclError aclrtCmoAsync(void* address, size_t bytes, aclrtCmoType, aclrtStream stream) {
  EMU_ENTER();
  auto range = emu::classify(address, bytes);
  if (range.kind == emu::MemoryKind::kInvalid) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtCmoAsync: " + range.why);
  }
  return emu::find_stream(stream, __func__) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_HANDLE;
}
