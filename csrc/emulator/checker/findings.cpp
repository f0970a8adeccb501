// SPDX-License-Identifier: Apache-2.0
#include "checker/findings.h"

#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "checker/order.h"
#include "runtime/config.h"
#include "runtime/device.h"
#include "runtime/json.h"
#include "runtime/output_file.h"

namespace emu::check {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kUnorderedAccess:
      return "unordered-access";
    case Kind::kUnorderedUpdate:
      return "unordered-update";
    case Kind::kUnorderedRecord:
      return "unordered-record";
    case Kind::kUnorderedCollective:
      return "unordered-collective";
    case Kind::kHostSourceChanged:
      return "host-source-changed";
    case Kind::kHostReadEarly:
      return "host-read-early";
    case Kind::kHostMemoryFreed:
      return "host-memory-freed";
    case Kind::kUnpinnedAsyncCopy:
      return "unpinned-async-copy";
    case Kind::kUseAfterFree:
      return "use-after-free";
    case Kind::kFreedInUse:
      return "freed-in-use";
    case Kind::kDeadlock:
      return "deadlock";
    case Kind::kKernelRegistration:
      return "kernel-registration";
  }
  return "?";
}

// "KIND PATTERN # reason": the pattern is a shell pattern for an operation's name or a line of a
// stack.
struct Suppression {
  std::string kind;
  std::string pattern;
  std::string reason;
};

struct Known {
  Finding finding;
  uint64_t count = 0;
  std::string suppressed_because;
};

struct Store {
  std::mutex mutex;
  std::vector<Suppression> suppressions;
  std::map<std::string, size_t> index;  // by what makes two findings the same
  std::vector<Known> all;
  std::set<const Device*> failed_by_findings;
  bool is_over = false;  // the program has ended
};

// ThreadSanitizer's, too.
constexpr int kExitCode = 66;

Store& store() {
  static auto* instance = new Store;
  return *instance;
}

std::string hex(uintptr_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%" PRIxPTR, value);
  return text;
}

std::string quoted(const std::string& text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// What is known of the tensor that holds the bytes concerned.
std::string tensor_of(const Operation& operation, uintptr_t begin, uintptr_t end) {
  for (const ByteRange& access : operation.accesses) {
    auto at = reinterpret_cast<uintptr_t>(access.address);
    if (at < end && begin < at + access.bytes && access.tensor) return *access.tensor;
  }
  return "";
}

std::string key_of(const Finding& finding) {
  std::string key = name_of(finding.kind);
  for (const Side& side : finding.sides) {
    key += '|';
    key += side.operation->name;
    key += '/' + std::to_string(side.operation->stack);
  }
  return finding.sides.empty() ? key + finding.message : key;
}

std::string describe(const Finding& finding, const Side& side) {
  const Operation& operation = *side.operation;
  std::string text = std::string("    ") + operation.name;
  if (*side.access) text += std::string(" (") + side.access + ")";
  if (operation.stream >= 0) {
    text += " on stream " + std::to_string(operation.stream) + " of device " +
            std::to_string(operation.device);
  }
  std::string tensor = tensor_of(operation, finding.begin, finding.end);
  if (!tensor.empty()) text += ", " + tensor;
  if (side.replay) text += ", in replay " + std::to_string(side.replay) + " of its graph";
  text += operation.is_captured ? ", captured by thread " : ", submitted by thread ";
  text += operation.thread + "\n";
  auto stack = frames(operation.stack);
  if (stack.empty()) text += "        (no Python frame)\n";
  for (const std::string& frame : stack) text += "        " + frame + "\n";
  return text;
}

std::string as_text(const Finding& finding, size_t number) {
  std::string text = "[ascend-check] finding " + std::to_string(number) + ", " +
                     name_of(finding.kind) + ": " + finding.message + "\n";
  for (const Side& side : finding.sides) text += describe(finding, side);
  if (finding.end > finding.begin) {
    text += "    bytes: [" + hex(finding.begin) + ", +" +
            std::to_string(finding.end - finding.begin) + ")\n";
  }
  if (!finding.advice.empty()) text += "    what to do: " + finding.advice + "\n";
  return text;
}

void write_json(std::ostream& out, const Known& known) {
  const Finding& finding = known.finding;
  out << "{\"kind\": \"" << name_of(finding.kind) << "\", \"count\": " << known.count
      << ", \"message\": " << quoted(finding.message) << ", \"advice\": " << quoted(finding.advice);
  if (!known.suppressed_because.empty()) {
    out << ", \"reason\": " << quoted(known.suppressed_because);
  }
  out << ", \"range\": ";
  if (finding.end > finding.begin) {
    out << "{\"address\": \"" << hex(finding.begin)
        << "\", \"bytes\": " << finding.end - finding.begin << "}";
  } else {
    out << "null";
  }
  out << ", \"operations\": [";
  for (size_t i = 0; i < finding.sides.size(); ++i) {
    const Side& side = finding.sides[i];
    const Operation& operation = *side.operation;
    out << (i ? ", " : "") << "{\"name\": " << quoted(operation.name) << ", \"access\": \""
        << side.access << "\", \"device\": " << operation.device
        << ", \"stream\": " << operation.stream << ", \"number\": " << operation.number
        << ", \"thread\": " << quoted(operation.thread)
        << ", \"tensor\": " << quoted(tensor_of(operation, finding.begin, finding.end))
        << ", \"replay\": " << side.replay
        << ", \"captured\": " << (operation.is_captured ? "true" : "false") << ", \"stack\": [";
    auto stack = frames(operation.stack);
    for (size_t k = 0; k < stack.size(); ++k) out << (k ? ", " : "") << quoted(stack[k]);
    out << "]}";
  }
  out << "]}";
}

// With the store's lock.
std::string as_json(const Store& s) {
  std::ostringstream out;
  out << "{\"version\": 1, \"pid\": " << getpid() << ", \"mode\": \""
      << (config().check == CheckMode::kStrict ? "strict" : "report") << "\"";
  for (bool suppressed : {false, true}) {
    out << (suppressed ? ", \"suppressed\": [" : ", \"findings\": [");
    bool is_first = true;
    for (const Known& known : s.all) {
      if (known.suppressed_because.empty() == suppressed) continue;
      if (!is_first) out << ", ";
      is_first = false;
      write_json(out, known);
    }
    out << "]";
  }
  out << "}\n";
  return out.str();
}

// With the store's lock.
void write_file(const Store& s) {
  if (!config().check_report_path) return;
  const std::string text = as_json(s);
  write_output_file("ASCEND_EMU_CHECK_REPORT", *config().check_report_path,
                    [&](std::FILE* file) { std::fwrite(text.data(), 1, text.size(), file); });
}

bool matches(const Suppression& suppression, const Finding& finding) {
  if (suppression.kind != name_of(finding.kind)) return false;
  for (const Side& side : finding.sides) {
    if (fnmatch(suppression.pattern.c_str(), side.operation->name, 0) == 0) return true;
    for (const std::string& frame : frames(side.operation->stack)) {
      if (fnmatch(suppression.pattern.c_str(), frame.c_str(), 0) == 0) return true;
    }
  }
  return false;
}

[[noreturn]] void refuse_suppressions(const std::string& path, int line, const std::string& why) {
  std::fprintf(stderr,
               "[ascend-check] %s:%d: %s. A line is `KIND PATTERN # reason`: the pattern is a "
               "shell pattern for an operation's name or a line of its stack\n",
               path.c_str(), line, why.c_str());
  std::_Exit(2);
}

std::string trimmed(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

void load_suppressions() {
  if (!config().check_suppressions_path) return;
  const std::string& path = *config().check_suppressions_path;
  std::ifstream file(path);
  if (!file) refuse_suppressions(path, 0, std::string("cannot be read: ") + std::strerror(errno));
  Store& s = store();
  std::lock_guard lock(s.mutex);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = trimmed(line);
    if (line.empty() || line[0] == '#') continue;
    size_t hash = line.find('#');
    std::string rule = trimmed(line.substr(0, hash));
    std::string reason = hash == std::string::npos ? "" : trimmed(line.substr(hash + 1));
    size_t space = rule.find_first_of(" \t");
    if (space == std::string::npos) refuse_suppressions(path, number, "there is no pattern");
    if (reason.empty()) refuse_suppressions(path, number, "there is no reason");
    Suppression made{rule.substr(0, space), trimmed(rule.substr(space)), reason};
    bool is_known = false;
    for (int kind = 0; kind <= static_cast<int>(Kind::kKernelRegistration); ++kind) {
      is_known |= made.kind == name_of(static_cast<Kind>(kind));
    }
    if (!is_known) refuse_suppressions(path, number, "there is no kind '" + made.kind + "'");
    if (made.kind == name_of(Kind::kDeadlock)) {
      refuse_suppressions(path, number, "a deadlock cannot be suppressed, it would never end");
    }
    s.suppressions.push_back(std::move(made));
  }
}

namespace {

// The device of a finding, one side of which may be the host's; null where there is none.
Device* device_of(const Finding& finding) {
  for (const Side& side : finding.sides) {
    if (side.operation->device >= 0) return find_device(side.operation->device, "check");
  }
  return find_device(0, "check");
}

constexpr const char* kAfterAFault = "after a fault of the device";

// Tasks of a device that has failed do not run, and what should have ordered others is not there.
bool is_after_a_fault(const Finding& finding, const Device* device, const Store& s) {
  return finding.kind != Kind::kDeadlock && device && device->failed() &&
         !s.failed_by_findings.contains(device);
}

}  // namespace

void report(const Finding& finding) {
  Store& s = store();
  Device* device = device_of(finding);
  // A deadlock never ends by itself: better an error than a hang, in either mode.
  const bool is_error = config().check == CheckMode::kStrict || finding.kind == Kind::kDeadlock;
  std::string text;
  {
    std::lock_guard lock(s.mutex);
    if (s.is_over) return;
    auto [entry, is_new] = s.index.try_emplace(key_of(finding), s.all.size());
    const bool is_after = is_after_a_fault(finding, device, s);
    if (is_new) s.all.push_back({finding, 0, ""});
    Known& known = s.all[entry->second];
    ++known.count;
    bool is_news = is_new;
    if (is_new) {
      if (is_after) known.suppressed_because = kAfterAFault;
      for (const Suppression& suppression : s.suppressions) {
        if (matches(suppression, finding)) known.suppressed_because = suppression.reason;
      }
    } else if (known.suppressed_because == kAfterAFault && !is_after) {
      known.suppressed_because.clear();
      is_news = true;
    }
    if (is_news) write_file(s);
    if (!known.suppressed_because.empty()) return;
    text = as_text(known.finding, entry->second + 1);
    if (is_news) {
      std::fputs(text.c_str(), stderr);
      std::fflush(stderr);
    }
    if (is_error && device && !device->failed()) s.failed_by_findings.insert(device);
  }
  if (is_error && device) device->set_failed(text);
}

int end_of_program(int status) {
  if (!on()) return status;
  Store& s = store();
  std::lock_guard lock(s.mutex);
  s.is_over = true;
  write_file(s);
  size_t shown = 0;
  uint64_t times = 0;
  for (const Known& known : s.all) {
    if (!known.suppressed_because.empty()) continue;
    ++shown;
    times += known.count;
  }
  if (!shown) return status;
  const bool is_strict = config().check == CheckMode::kStrict;
  const int code = is_strict && status == 0 ? kExitCode : status;
  std::fprintf(stderr,
               "[ascend-check] process %d: %zu findings (%" PRIu64 " occurrences), exit code %d\n",
               getpid(), shown, times, code);
  return code;
}

void forget_findings() {
  Store& s = store();
  std::lock_guard lock(s.mutex);
  s.index.clear();
  s.all.clear();
  s.failed_by_findings.clear();
}

}  // namespace emu::check

EMU_API size_t emu_check_json(char* buffer, size_t bytes) {
  auto& s = emu::check::store();
  std::lock_guard lock(s.mutex);
  return emu::copy_out(emu::check::as_json(s), buffer, bytes);
}

EMU_API void emu_check_reset(void) {
  emu::check::forget_findings();
  emu::check::forget_history();
}

EMU_API size_t emu_check_looks(uint64_t* numbers, size_t count) {
  const auto looks = emu::check::looks();
  std::copy_n(looks.begin(), std::min(count, looks.size()), numbers);
  return looks.size();
}
