// SPDX-License-Identifier: Apache-2.0
// Every ASCEND_EMU_* switch, read from the environment in one place. No behaviour here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace emu {

// Microseconds that tasks of a name or kind take at least.
using SlowTasks = std::vector<std::pair<std::string, uint32_t>>;

// A fault on demand: see inject.h.
struct Fault {
  enum class Kind : uint8_t { kStuck, kError, kOutOfMemory, kLost };
  Kind kind;
  std::string task;
  uint64_t number;
};

enum class CheckMode : uint8_t { kOff, kReport, kStrict };

struct Config {
  int devices;                            // ASCEND_EMU_DEVICES
  size_t hbm_bytes;                       // ASCEND_EMU_HBM_BYTES, per device
  std::string soc;                        // ASCEND_EMU_SOC
  std::string cann_version;               // ASCEND_EMU_CANN_VERSION
  bool guard;                             // ASCEND_EMU_GUARD
  std::optional<uint64_t> schedule_seed;  // ASCEND_EMU_SCHEDULE_SEED
  // Per device. The defaults are what CANN 8.5 documents for Atlas A2 and A3
  // (aclrtCreateStream: 1,984 streams; aclrtCreateEventWithFlag: 65,536
  // events).
  size_t stream_budget;                          // ASCEND_EMU_STREAM_BUDGET
  size_t event_budget;                           // ASCEND_EMU_EVENT_BUDGET
  SlowTasks slow_tasks;                          // ASCEND_EMU_SLOW_US: see parse_slow_tasks()
  std::vector<Fault> faults;                     // ASCEND_EMU_INJECT: see inject.h
  bool compute;                                  // ASCEND_EMU_COMPUTE: 0 leaves arithmetic out
  std::optional<std::string> counters_path;      // ASCEND_EMU_COUNTERS
  std::optional<std::string> trace_path;         // ASCEND_EMU_TRACE
  CheckMode check;                               // ASCEND_EMU_CHECK: see checker/order.h
  size_t check_depth;                            // ASCEND_EMU_CHECK_DEPTH, Python frames
  uint32_t check_stall_ms;                       // ASCEND_EMU_CHECK_STALL_MS, 0: do not look
  uint32_t check_register_us;                    // ASCEND_EMU_CHECK_REGISTER_US
  std::optional<std::string> check_report_path;  // ASCEND_EMU_CHECK_REPORT
  std::optional<std::string> check_suppressions_path;  // ASCEND_EMU_CHECK_SUPPRESSIONS
  int log_level;       // ASCEND_GLOBAL_LOG_LEVEL (CANN's own; 0 debug .. 3 error)
  bool log_to_stderr;  // ASCEND_SLOG_PRINT_TO_STDOUT (CANN's own)
};

// The settings of this process, read at the first call. A name or a value that cannot be understood
// ends the process with a message: a test that runs with other settings than it asked for proves
// nothing.
const Config& config();

// "N" delays every replay of a graph by N microseconds. "NAME:N,..." delays tasks by their name
// (aclnnMatmul, memcpy_h2d) or kind: operator, copy, memset, collective, graph, update. Nothing if
// the text is neither.
std::optional<SlowTasks> parse_slow_tasks(const std::string& text);

// Physical ids of the devices that ASCEND_RT_VISIBLE_DEVICES lets this process see, read from the
// environment at each call: callers freeze the answer when a device is first used.
std::vector<int> visible_devices();

}  // namespace emu
