// SPDX-License-Identifier: Apache-2.0
#include "runtime/config.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string_view>

#include "runtime/output_file.h"

namespace emu {
namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* expected) {
  std::fprintf(stderr, "[ascend-emulator] %s='%s' is not valid: expected %s\n", name, value,
               expected);
  std::_Exit(2);
}

// The environment, and the names that somebody asked it for.
class Environment {
 public:
  const char* get(const char* name) {
    asked_.emplace(name);
    const char* value = std::getenv(name);
    return value && *value ? value : nullptr;
  }

  uint64_t get_number(const char* name, uint64_t fallback, uint64_t lowest, uint64_t highest,
                      const char* expected) {
    const char* value = get(name);
    if (!value) return fallback;
    char* end = nullptr;
    errno = 0;
    uint64_t number = std::strtoull(value, &end, 10);
    if (errno || *end || *value == '-' || number < lowest || number > highest) {
      refuse(name, value, expected);
    }
    return number;
  }

  std::optional<std::string> get_string(const char* name) {
    const char* value = get(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  }

  // A file that is written at the end: what is in its way is better said at the start.
  std::optional<std::string> get_output_file(const char* name) {
    std::optional<std::string> path = get_string(name);
    if (!path) return path;
    if (const std::string why = why_not_writable(*path); !why.empty()) {
      refuse(name, path->c_str(), ("a file that can be written (" + why + ")").c_str());
    }
    return path;
  }

  // A misspelt name would leave a run other than it was asked for. Call when all are read.
  void refuse_unknown(std::string_view prefix) const {
    for (char** entry = environ; *entry; ++entry) {
      const std::string_view line = *entry;
      const std::string name(line.substr(0, line.find('=')));
      if (!name.starts_with(prefix) || asked_.contains(name)) continue;
      std::string known;
      for (const std::string& one : asked_) {
        if (one.starts_with(prefix)) known += one + ' ';
      }
      std::fprintf(stderr, "[ascend-emulator] there is no switch %s: unset it, or take one of %s\n",
                   name.c_str(), known.c_str());
      std::_Exit(2);
    }
  }

 private:
  std::set<std::string> asked_;
};

std::optional<std::vector<Fault>> parse_faults(const std::string& text) {
  std::vector<Fault> faults;
  std::stringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    size_t first = entry.find(':');
    size_t last = entry.rfind(':');
    if (first == std::string::npos || last == first) return std::nullopt;
    std::string kind = entry.substr(0, first);
    std::string number = entry.substr(last + 1);
    Fault fault{Fault::Kind::kStuck, entry.substr(first + 1, last - first - 1), 0};
    if (kind == "error") fault.kind = Fault::Kind::kError;
    if (kind == "oom") fault.kind = Fault::Kind::kOutOfMemory;
    if (kind == "lost") fault.kind = Fault::Kind::kLost;
    bool is_known = kind == "stuck" || fault.kind != Fault::Kind::kStuck;
    bool is_number = !number.empty() && number.size() <= 9 &&
                     number.find_first_not_of("0123456789") == std::string::npos;
    if (!is_known || !is_number || fault.task.empty()) return std::nullopt;
    fault.number = std::stoull(number);
    faults.push_back(std::move(fault));
  }
  return faults;
}

Config read() {
  Config c{};
  Environment e;
  c.devices = static_cast<int>(
      e.get_number("ASCEND_EMU_DEVICES", 2, 0, 64, "a number of devices from 0 to 64"));
  c.hbm_bytes = e.get_number("ASCEND_EMU_HBM_BYTES", size_t{16} << 30, size_t{64} << 20,
                             size_t{1} << 40, "bytes of memory per device, 64 MiB to 1 TiB");
  c.soc = e.get_string("ASCEND_EMU_SOC").value_or("Ascend910B3");
  c.cann_version = e.get_string("ASCEND_EMU_CANN_VERSION").value_or("9.1.0");
  if (c.cann_version.size() >= 64) {
    refuse("ASCEND_EMU_CANN_VERSION", c.cann_version.c_str(), "a version such as 9.1.0");
  }
  c.guard = e.get_number("ASCEND_EMU_GUARD", 0, 0, 1, "0 or 1") == 1;
  if (e.get("ASCEND_EMU_SCHEDULE_SEED")) {
    c.schedule_seed = e.get_number("ASCEND_EMU_SCHEDULE_SEED", 0, 0, UINT64_MAX, "a number");
  }
  c.stream_budget =
      e.get_number("ASCEND_EMU_STREAM_BUDGET", 1984, 1, 1u << 20, "a number of streams");
  c.event_budget =
      e.get_number("ASCEND_EMU_EVENT_BUDGET", 65536, 1, 1u << 24, "a number of events");
  if (const char* slow = e.get("ASCEND_EMU_SLOW_US")) {
    auto parsed = parse_slow_tasks(slow);
    if (!parsed) {
      refuse("ASCEND_EMU_SLOW_US", slow,
             "microseconds, or NAME:MICROSECONDS,... with the names of "
             "operators or kinds of tasks");
    }
    c.slow_tasks = std::move(*parsed);
  }
  if (const char* faults = e.get("ASCEND_EMU_INJECT")) {
    auto parsed = parse_faults(faults);
    if (!parsed) refuse("ASCEND_EMU_INJECT", faults, "stuck|error|oom|lost:NAME:N,...");
    c.faults = std::move(*parsed);
  }
  c.compute = e.get_number("ASCEND_EMU_COMPUTE", 1, 0, 1, "0 or 1") == 1;
  c.counters_path = e.get_output_file("ASCEND_EMU_COUNTERS");
  c.trace_path = e.get_output_file("ASCEND_EMU_TRACE");
  if (const char* check = e.get("ASCEND_EMU_CHECK")) {
    const std::string mode = check;
    if (mode != "off" && mode != "report" && mode != "strict") {
      refuse("ASCEND_EMU_CHECK", check, "off, report or strict");
    }
    c.check = mode == "strict" ? CheckMode::kStrict
                               : (mode == "report" ? CheckMode::kReport : CheckMode::kOff);
  }
  c.check_depth = e.get_number("ASCEND_EMU_CHECK_DEPTH", 1, 0, 64, "a number of frames, 0 to 64");
  c.check_stall_ms = static_cast<uint32_t>(
      e.get_number("ASCEND_EMU_CHECK_STALL_MS", 10'000, 0, 3'600'000, "milliseconds"));
  c.check_register_us = static_cast<uint32_t>(
      e.get_number("ASCEND_EMU_CHECK_REGISTER_US", 1000, 0, 10'000'000, "microseconds"));
  c.check_report_path = e.get_output_file("ASCEND_EMU_CHECK_REPORT");
  c.check_suppressions_path = e.get_string("ASCEND_EMU_CHECK_SUPPRESSIONS");
  c.log_level = static_cast<int>(e.get_number("ASCEND_GLOBAL_LOG_LEVEL", 3, 0, 4, "0 to 4"));
  c.log_to_stderr = e.get_number("ASCEND_SLOG_PRINT_TO_STDOUT", 0, 0, 1, "0 or 1") == 1;
  e.refuse_unknown("ASCEND_EMU_");
  return c;
}

}  // namespace

const Config& config() {
  static const Config* instance = new Config(read());
  return *instance;
}

std::optional<SlowTasks> parse_slow_tasks(const std::string& text) {
  SlowTasks tasks;
  std::stringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    size_t colon = entry.find(':');
    std::string name = colon == std::string::npos ? "graph" : entry.substr(0, colon);
    std::string number = colon == std::string::npos ? entry : entry.substr(colon + 1);
    bool is_number = !number.empty() && number.size() <= 9 &&
                     number.find_first_not_of("0123456789") == std::string::npos;
    if (name.empty() || !is_number) return std::nullopt;
    tasks.emplace_back(name, std::stoul(number));
  }
  return tasks;
}

std::vector<int> visible_devices() {
  std::vector<int> all;
  const char* list = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (!list) {
    for (int id = 0; id < config().devices; ++id) all.push_back(id);
    return all;
  }
  // As CANN documents it: ids after the first invalid one are not visible.
  while (*list) {
    char* end = nullptr;
    long id = std::strtol(list, &end, 10);
    if (end == list || (*end && *end != ',') || id < 0 || id >= config().devices) break;
    all.push_back(static_cast<int>(id));
    list = *end ? end + 1 : end;
  }
  return all;
}

}  // namespace emu
