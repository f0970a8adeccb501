// SPDX-License-Identifier: Apache-2.0
// Where a task meets the device: the place for whatever watches, delays or replaces its work. Not
// where tasks are queued or ordered.
#pragma once

#include "runtime/api.h"
#include "runtime/device.h"

namespace emu {

// Runs one task on the calling worker. A body that throws fails the device, and after that only
// event records run, since others wait for them. Throws TaskInterrupted and nothing else.
void execute(Device& device, const Task& task);

// As execute(), for a task that was captured some time ago: memory that it touches and that is gone
// by now fails the device instead of ending the process. `group`: its task group, or null.
void execute_captured(Device& device, const Task& task, const void* group);

// In-process API: int emu_set_slow_us(const char* text) replaces what ASCEND_EMU_SLOW_US said, for
// tasks that start from now on. 0 if done, -1 if the text is not valid.

}  // namespace emu
