// SPDX-License-Identifier: Apache-2.0
#include "runtime/error.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "runtime/config.h"

namespace emu {
namespace {

// A plain array: static destructors still report errors after the main thread's thread-locals
// have gone.
thread_local char recent_message[2048];

std::atomic<const std::string*> poison_message{nullptr};

}  // namespace

aclError fail(aclError code, std::string message) {
  if (config().log_to_stderr) {
    std::fprintf(stderr, "[ascend-emulator] error %d: %s\n", code, message.c_str());
  }
  size_t length = std::min(message.size(), sizeof recent_message - 1);
  std::memcpy(recent_message, message.data(), length);
  recent_message[length] = '\0';
  return code;
}

void poison(const std::string& why) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (poison_message.load()) return;
  std::fprintf(stderr, "[ascend-emulator] the emulated device is unusable from here on: %s\n",
               why.c_str());
  // Kept for the life of the process: readers hold no lock.
  poison_message.store(new std::string("the emulated device is unusable: " + why));
}

const std::string* poisoned() { return poison_message.load(std::memory_order_acquire); }

aclError fail_null(const char* api, const char* argument) {
  return fail(ACL_ERROR_RT_PARAM_INVALID,
              std::string(api) + ": argument '" + argument + "' is null");
}

aclError fail_unsupported(const char* api, const char* why) {
  return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, std::string(api) + " is not emulated: " + why);
}

}  // namespace emu

EMU_API const char* aclGetRecentErrMsg() {
  // Reading clears, as on CANN; the text lives until this thread's next call.
  static thread_local char returned[sizeof emu::recent_message];
  if (!*emu::recent_message) return nullptr;
  std::memcpy(returned, emu::recent_message, sizeof returned);
  *emu::recent_message = '\0';
  return returned;
}

EMU_API void aclAppLog(aclLogLevel level, const char* function, const char* file, uint32_t line,
                       const char* format, ...) {
  if (!emu::config().log_to_stderr || level < emu::config().log_level) return;
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[ascend-emulator] log %d %s (%s:%u): %s\n", level, function, file, line,
               text);
}

EMU_API aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

EMU_API aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
