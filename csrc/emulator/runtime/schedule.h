// SPDX-License-Identifier: Apache-2.0
// The adversarial scheduler: delays before tasks, chosen from (seed, stream, task) alone, so that
// a seed is a bug report. Off unless ASCEND_EMU_SCHEDULE_SEED is set.
//
// In-process API: void emu_set_schedule_seed(uint64_t seed, int on) replaces that setting, for
// tests that fork a process with torch already imported for each seed.
#pragma once

#include <cstdint>

namespace emu {

class TaskSchedule {
 public:
  // `stream` tells the streams of a process apart in order of creation, per device.
  TaskSchedule(int device, uint64_t stream);

  // Sleeps before the next task of this stream where the seed says so.
  void before_task();

  // Sleeps before or after an external event's record, wait or reset (a value write or wait), more
  // often than before other tasks: that is where a replay meets its update stream.
  void around_event();

 private:
  const int device_;
  const uint64_t stream_;
  uint64_t task_ = 0;
};

}  // namespace emu
