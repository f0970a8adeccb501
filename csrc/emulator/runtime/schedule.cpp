// SPDX-License-Identifier: Apache-2.0
#include "runtime/schedule.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "runtime/api.h"
#include "runtime/config.h"
#include "runtime/counters.h"
#include "runtime/delay.h"

namespace emu {
namespace {

struct Seed {
  std::atomic<bool> on{config().schedule_seed.has_value()};
  std::atomic<uint64_t> value{config().schedule_seed.value_or(0)};
};

Seed& seed_setting() {
  static auto* instance = new Seed;
  return *instance;
}

std::optional<uint64_t> current_seed() {
  const Seed& seed = seed_setting();
  if (!seed.on.load(std::memory_order_relaxed)) return std::nullopt;
  return seed.value.load(std::memory_order_relaxed);
}

void hold_back(uint32_t us) {
  if (!us) return;
  count(Counter::kScheduleDelays);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace

TaskSchedule::TaskSchedule(int device, uint64_t stream) : device_(device), stream_(stream) {}

void TaskSchedule::before_task() {
  auto seed = current_seed();
  if (!seed) return;
  hold_back(delay_us(*seed, device_, stream_, task_++));
}

void TaskSchedule::around_event() {
  auto seed = current_seed();
  if (!seed) return;
  hold_back(event_delay_us(*seed, stream_, task_++));
}

}  // namespace emu

EMU_API void emu_set_schedule_seed(uint64_t seed, int on) {
  emu::seed_setting().value = seed;
  emu::seed_setting().on = on != 0;
}
