// SPDX-License-Identifier: Apache-2.0
// The timeline of ASCEND_EMU_TRACE in Chrome's trace format: one track per stream, one per host
// thread that called the API. Costs nothing while off.
#pragma once

#include <cstdint>

#include "runtime/api.h"

namespace emu {

bool tracing();
int64_t trace_now_ns();
void trace_host_call(const char* name, int64_t start_ns, int64_t end_ns);
void write_trace_file();

// The execution of one task, from construction to destruction.
class TraceTask {
 public:
  TraceTask(int device, int32_t stream, const Task& task);
  ~TraceTask();
  TraceTask(const TraceTask&) = delete;
  TraceTask& operator=(const TraceTask&) = delete;

 private:
  int device_;
  int32_t stream_;
  const char* name_;
  int64_t start_ns_;
};

}  // namespace emu
