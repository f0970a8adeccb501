// SPDX-License-Identifier: Apache-2.0
#include "runtime/inject.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "checker/order.h"
#include "runtime/config.h"
#include "runtime/stream.h"

namespace emu {
namespace {

std::atomic<bool> out_of_memory{false};

// How often the task of each fault has run.
std::atomic<uint64_t>* counts() {
  static auto* all = new std::atomic<uint64_t>[config().faults.size()]();
  return all;
}

}  // namespace

void inject_into(const Task& task) {
  const auto& faults = config().faults;
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].task != task.name || ++counts()[i] != faults[i].number) continue;
    switch (faults[i].kind) {
      case Fault::Kind::kStuck: {
        check::Blocked blocked("an injected fault (ASCEND_EMU_INJECT)");
        for (;;) {
          check_interrupted();
          std::this_thread::sleep_for(std::chrono::milliseconds(kInterruptPollMs));
        }
      }
      case Fault::Kind::kError:
        throw std::runtime_error("an injected fault (ASCEND_EMU_INJECT)");
      case Fault::Kind::kOutOfMemory:
        out_of_memory = true;
        break;
      case Fault::Kind::kLost:
        std::raise(SIGKILL);
        break;
    }
  }
}

bool allocations_fail() { return out_of_memory.load(std::memory_order_relaxed); }

}  // namespace emu
