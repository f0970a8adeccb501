// SPDX-License-Identifier: Apache-2.0
// Writing and awaiting a 64-bit word of device memory in stream order.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "checker/order.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace emu {
namespace {

// Tells waits of any word about writes of any word. Words can also be written in other ways, so
// that a wait looks again by itself every now and then.
struct Writes {
  std::mutex mutex;
  std::condition_variable happened;
};

Writes& writes() {
  static auto* instance = new Writes;
  return *instance;
}

void write(void* address, uint64_t value) {
  if (check::on()) {
    auto before = __atomic_load_n(static_cast<uint64_t*>(host_alias(address)), __ATOMIC_ACQUIRE);
    check::flag_changes(address, before, value);
    check::word(address).release();
  }
  Writes& w = writes();
  std::lock_guard lock(w.mutex);
  __atomic_store_n(static_cast<uint64_t*>(host_alias(address)), value, __ATOMIC_RELEASE);
  w.happened.notify_all();
}

aclError check_word(const char* api, const void* address) {
  if (!address) return fail_null(api, "devAddr");
  if (reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t)) {
    return fail(ACL_ERROR_RT_ADDR_UNALIGNED,
                std::string(api) + ": the address is not aligned to 8 bytes");
  }
  MemoryRange range = classify(address, sizeof(uint64_t));
  if (range.kind == MemoryKind::kInvalid) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": " + range.why);
  }
  if (range.kind == MemoryKind::kPageable) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                std::string(api) + ": the device cannot reach pageable host memory");
  }
  return ACL_SUCCESS;
}

bool is_met(uint64_t actual, uint64_t value, uint32_t flag) {
  switch (flag) {
    case ACL_STREAM_WAIT_VALUE_GEQ:
      return static_cast<int64_t>(actual - value) >= 0;  // cyclic, as a hardware counter
    case ACL_STREAM_WAIT_VALUE_EQ:
      return actual == value;
    case ACL_STREAM_WAIT_VALUE_AND:
      return (actual & value) != 0;
    default:
      return ~(actual | value) != 0;
  }
}

void wait(const void* address, uint64_t value, uint32_t flag) {
  constexpr auto kLookAgain = std::chrono::milliseconds(1);
  const auto* word = static_cast<const uint64_t*>(host_alias(address));
  Writes& w = writes();
  {
    std::unique_lock lock(w.mutex);
    std::optional<check::Blocked> blocked;
    while (!is_met(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flag)) {
      if (!blocked) blocked.emplace("a word of memory (an external event) that nobody has written");
      check_interrupted();
      w.happened.wait_for(lock, kLookAgain);
    }
  }
  if (check::on()) check::word(address).acquire();
}

}  // namespace
}  // namespace emu

EMU_API aclError aclrtValueWrite(void* address, uint64_t value, uint32_t, aclrtStream stream) {
  EMU_ENTER();
  if (aclError error = emu::check_word(__func__, address)) return error;
  return emu::submit(stream, {"value_write",
                              emu::TaskKind::kValueWrite,
                              [address, value] { emu::write(address, value); },
                              {{address, sizeof(uint64_t), true}}});
}

EMU_API aclError aclrtValueWait(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  EMU_ENTER();
  if (aclError error = emu::check_word(__func__, address)) return error;
  if (flag > ACL_STREAM_WAIT_VALUE_NOR) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID,
                     "aclrtValueWait: unknown flag " + std::to_string(flag));
  }
  return emu::submit(stream, {"value_wait",
                              emu::TaskKind::kValueWait,
                              [address, value, flag] { emu::wait(address, value, flag); },
                              {{address, sizeof(uint64_t), false}}});
}
