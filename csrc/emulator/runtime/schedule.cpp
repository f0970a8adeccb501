// SPDX-License-Identifier: Apache-2.0
#include "runtime/schedule.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "runtime/api.h"
#include "runtime/config.h"
#include "runtime/counters.h"

namespace emu {
namespace {

// splitmix64's finaliser: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

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
  count(Counter::kScheduleDelays);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace

TaskSchedule::TaskSchedule(int device, uint64_t stream) : device_(device), stream_(stream) {}

uint32_t TaskSchedule::delay_us(uint64_t seed, int device, uint64_t stream, uint64_t task) {
  uint64_t r = mix(mix(mix(mix(seed) ^ static_cast<uint64_t>(device)) ^ stream) ^ task);
  // The low bits choose the class, the high bits the length.
  if (r % 16 != 0) return 0;
  bool is_long = (r / 16) % 16 == 0;
  uint32_t span_us = is_long ? 4000 : 1000;
  return 50 + static_cast<uint32_t>((r >> 32) % (span_us - 50));
}

void TaskSchedule::before_task() {
  auto seed = current_seed();
  if (!seed) return;
  uint32_t us = delay_us(*seed, device_, stream_, task_++);
  if (us) hold_back(us);
}

void TaskSchedule::around_event() {
  auto seed = current_seed();
  if (!seed) return;
  // Every second time, for 50 us to 1 ms.
  uint64_t r = mix(mix(mix(*seed) ^ stream_) ^ ~task_++);
  if (r % 2) hold_back(50 + static_cast<uint32_t>((r >> 32) % 950));
}

}  // namespace emu

EMU_API void emu_set_schedule_seed(uint64_t seed, int on) {
  emu::seed_setting().value = seed;
  emu::seed_setting().on = on != 0;
}
