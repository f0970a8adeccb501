// SPDX-License-Identifier: Apache-2.0
#include "runtime/execute.h"

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>

#include "checker/order.h"
#include "runtime/config.h"
#include "runtime/inject.h"
#include "runtime/memory.h"
#include "runtime/stream.h"
#include "runtime/trace.h"

namespace emu {
namespace {

std::atomic<const SlowTasks*>& slow_tasks() {
  static std::atomic<const SlowTasks*> current{&config().slow_tasks};
  return current;
}

const char* kind_name(TaskKind kind) {
  switch (kind) {
    case TaskKind::kOperator:
      return "operator";
    case TaskKind::kCopy:
      return "copy";
    case TaskKind::kMemset:
      return "memset";
    case TaskKind::kCollective:
      return "collective";
    case TaskKind::kGraphReplay:
      return "graph";
    case TaskKind::kTaskUpdate:
      return "update";
    default:
      return "";
  }
}

void delay(const Task& task) {
  const SlowTasks& slow = *slow_tasks().load(std::memory_order_acquire);
  if (slow.empty()) return;
  uint64_t us = 0;
  for (const auto& [name, name_us] : slow) {
    if (name == task.name || name == kind_name(task.kind)) us += name_us;
  }
  auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
  for (;;) {
    auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return;
    check_interrupted();
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(left, std::chrono::milliseconds(kInterruptPollMs)));
  }
}

// ASCEND_EMU_COMPUTE=0.
bool is_left_out(const Task& task) {
  if (config().compute || task.essential) return false;
  switch (task.kind) {
    case TaskKind::kOperator:
    case TaskKind::kCollective:
    case TaskKind::kMemset:
    case TaskKind::kCopy:
      return true;
    default:
      return false;
  }
}

void check_memory(const Task& task) {
  for (const ByteRange& access : task.accesses) {
    MemoryRange range = classify(access.address, access.bytes);
    if (range.kind == MemoryKind::kInvalid) {
      throw std::runtime_error("memory was freed since the task was captured: " + range.why);
    }
    if (range.kind == MemoryKind::kPageable) {
      throw std::runtime_error(
          "page-locked host memory was freed or "
          "unregistered since the task was captured");
    }
  }
}

void execute(Device& device, const Task& task, bool is_captured, const void* group) {
  if (!task.body) return;
  if (device.failed() && task.kind != TaskKind::kEventRecord) return;
  TraceTask trace(device.index(), worker_stream_id(), task);
  auto fail = [&](const char* why, aclError code = ACL_ERROR_RT_AICORE_EXCEPTION) {
    device.set_failed(
        std::string(task.name) + " on stream " + std::to_string(worker_stream_id()) + ": " + why,
        code);
  };
  try {
    delay(task);
    if (is_left_out(task)) return;
    if (is_captured) check_memory(task);
    check::Running running(task, group);
    if (!config().faults.empty()) inject_into(task);
    if (running.has_memory()) task.body();
  } catch (const TaskInterrupted&) {
    throw;
  } catch (const DeviceError& error) {
    fail(error.what(), error.code());
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("unknown exception");
  }
}

}  // namespace

void execute(Device& device, const Task& task) { execute(device, task, false, nullptr); }

void execute_captured(Device& device, const Task& task, const void* group) {
  execute(device, task, true, group);
}

}  // namespace emu

EMU_API int emu_set_slow_us(const char* text) {
  auto parsed = text ? emu::parse_slow_tasks(text) : std::nullopt;
  if (!parsed) return -1;
  // Kept for good: workers read it without a lock.
  static std::mutex mutex;
  static auto* all = new std::list<emu::SlowTasks>;
  std::lock_guard lock(mutex);
  emu::slow_tasks().store(&all->emplace_back(std::move(*parsed)), std::memory_order_release);
  return 0;
}
