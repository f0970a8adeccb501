// SPDX-License-Identifier: Apache-2.0
#include "runtime/counters.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/config.h"
#include "runtime/graph.h"
#include "runtime/json.h"
#include "runtime/output_file.h"
#include "runtime/trace.h"

namespace emu {
namespace {

// Slots of a thread's array: fixed counters first, then slots that are given to names as they
// come. A host wait takes three slots.
constexpr size_t kCopySlots = 4 * 2 * 2 * 2;    // direction, asynchronous, pinned, count/bytes
constexpr size_t kAllocationSlots = 4 * 2 * 2;  // kind, made/freed, count/bytes
constexpr size_t kFirstCopy = static_cast<size_t>(Counter::kCount);
constexpr size_t kFirstAllocation = kFirstCopy + kCopySlots;
constexpr size_t kFirstNamed = kFirstAllocation + kAllocationSlots;
// 639 operator names are known to torch_npu 2.13.0; what does not fit counts as "other".
constexpr size_t kSlots = 2048;

enum class NameKind : uint8_t { kLaunch, kCollective, kWait, kReplayed };

constexpr const char* kCounterNames[] = {
    "event_records",        "event_waits",
    "event_resets",         "event_queries",
    "events_created",       "events_destroyed",
    "streams_created",      "streams_destroyed",
    "stream_queries",       "callbacks",
    "host_functions",       "value_writes",
    "value_waits",          "memsets",
    "graph_captures",       "graph_replays",
    "task_updates",         "captured_nodes",
    "graphs_destroyed",     "external_event_records",
    "external_event_waits", "external_event_resets",
    "schedule_delays",
};
static_assert(std::size(kCounterNames) == static_cast<size_t>(Counter::kCount));

using Values = std::vector<uint64_t>;

struct ThreadCounters {
  pid_t tid = gettid();
  std::string name;
  std::atomic<bool> alive{true};
  // Written by its thread alone, read by all: relaxed stores and loads suffice.
  std::array<std::atomic<uint64_t>, kSlots> slots{};
};

struct Name {
  NameKind kind;
  std::string text;
  size_t slot;
};

struct Step {
  uint64_t count = 0;
  Values own = Values(kSlots);
  Values others = Values(kSlots);
};

struct State {
  std::mutex mutex;  // of everything but the slots
  std::list<std::shared_ptr<ThreadCounters>> threads;
  Values retired = Values(kSlots);  // of threads that were dropped from the list
  Values base = Values(kSlots);     // what reset() hides of the total
  std::map<const ThreadCounters*, Values> thread_base;
  std::map<std::pair<NameKind, std::string>, size_t> slot_of;
  std::vector<Name> names;
  std::atomic<size_t> slots_used{kFirstNamed};
  std::map<std::string, Step> steps;
  std::atomic<uint64_t> pinned_allocations{0};
};

State& state() {
  static State* instance = new State;
  return *instance;
}

std::string current_thread_name() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

// Threads that ended stay listed for the report up to this many.
constexpr size_t kMaximumThreads = 256;

// What a thread needs to count. `current` is trivially destructible, since static destructors
// still call the API after the main thread's thread-locals have gone.
struct PerThread {
  std::shared_ptr<ThreadCounters> counters = std::make_shared<ThreadCounters>();
  // Names are literals: the address is a good enough key.
  std::unordered_map<const void*, size_t> slot_of[4];
};
thread_local PerThread* current = nullptr;
thread_local bool ended = false;

class ThreadEnd {
 public:
  ~ThreadEnd() {
    std::unique_ptr<PerThread> mine(current);
    current = nullptr;
    ended = true;
    if (!mine) return;
    std::lock_guard lock(state().mutex);
    mine->counters->name = current_thread_name();  // Python names its threads late
    mine->counters->alive = false;
  }
};

void enlist(const std::shared_ptr<ThreadCounters>& counters) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.threads.push_back(counters);
  if (s.threads.size() <= kMaximumThreads) return;
  for (auto it = s.threads.begin(); it != s.threads.end(); ++it) {
    if ((*it)->alive) continue;
    for (size_t i = 0; i < kSlots; ++i) s.retired[i] += (*it)->slots[i];
    s.thread_base.erase(it->get());
    s.threads.erase(it);
    return;
  }
}

PerThread& per_thread() {
  if (current) [[likely]]
    return *current;
  current = new PerThread;
  current->counters->name = current_thread_name();
  enlist(current->counters);
  if (!ended) {
    static thread_local ThreadEnd at_thread_end;
    (void)at_thread_end;
  }
  return *current;
}

ThreadCounters& mine() { return *per_thread().counters; }

void add(size_t slot, uint64_t value) {
  auto& cell = mine().slots[slot];
  cell.store(cell.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

size_t name_width(NameKind kind) { return kind == NameKind::kWait ? 3 : 1; }

size_t intern(NameKind kind, const char* name) {
  auto [it, is_new] = per_thread().slot_of[static_cast<size_t>(kind)].try_emplace(name, 0);
  if (!is_new) return it->second;
  State& s = state();
  std::lock_guard lock(s.mutex);
  std::string text = name;
  size_t used = s.slots_used;
  // The last slots are kept for what has no slot of its own.
  constexpr size_t kReserve = 3 * 4;
  if (!s.slot_of.contains({kind, text}) && used + name_width(kind) > kSlots - kReserve) {
    text = "other";
  }
  auto [known, is_new_name] = s.slot_of.try_emplace({kind, text}, used);
  if (is_new_name) {
    s.names.push_back({kind, text, used});
    s.slots_used = used + name_width(kind);
  }
  it->second = known->second;
  return known->second;
}

size_t copy_slot(CopyDirection direction, bool asynchronous, bool pinned) {
  return kFirstCopy + ((static_cast<size_t>(direction) * 2 + asynchronous) * 2 + pinned) * 2;
}

size_t allocation_slot(AllocationKind kind, bool freed) {
  return kFirstAllocation + (static_cast<size_t>(kind) * 2 + freed) * 2;
}

void accumulate(const ThreadCounters& thread, Values& sum) {
  for (size_t i = 0, n = state().slots_used; i < n; ++i) {
    sum[i] += thread.slots[i].load(std::memory_order_relaxed);
  }
}

// Both with the lock held. Neither looks at `base`.
Values sum_of_others(const ThreadCounters* except) {
  Values sum = state().retired;
  for (const auto& thread : state().threads) {
    if (thread.get() != except) accumulate(*thread, sum);
  }
  return sum;
}

Values minus(Values a, const Values& b) {
  for (size_t i = 0; i < kSlots; ++i) a[i] -= b[i];
  return a;
}

struct OpenStep {
  bool open = false;
  std::string label;
  Values own;
  Values others;
};

OpenStep& open_step() {
  thread_local OpenStep step;
  return step;
}

// ---- JSON ----

void append_pair(std::string& out, const Values& v, size_t slot) {
  out +=
      "{\"count\":" + std::to_string(v[slot]) + ",\"bytes\":" + std::to_string(v[slot + 1]) + '}';
}

void append_copies(std::string& out, const Values& v) {
  constexpr std::pair<CopyDirection, const char*> kHostDirections[] = {
      {CopyDirection::kH2D, "h2d"}, {CopyDirection::kD2H, "d2h"}, {CopyDirection::kH2H, "h2h"}};
  out += "\"copies\":{";
  for (auto [direction, name] : kHostDirections) {
    out += '"' + std::string(name) + "\":{";
    for (bool asynchronous : {false, true}) {
      out += asynchronous ? ",\"async\":{" : "\"sync\":{";
      out += "\"pinned\":";
      append_pair(out, v, copy_slot(direction, asynchronous, true));
      out += ",\"pageable\":";
      append_pair(out, v, copy_slot(direction, asynchronous, false));
      out += '}';
    }
    out += "},";
  }
  out += "\"d2d\":{\"sync\":";
  append_pair(out, v, copy_slot(CopyDirection::kD2D, false, false));
  out += ",\"async\":";
  append_pair(out, v, copy_slot(CopyDirection::kD2D, true, false));
  out += "}}";
}

void append_names(std::string& out, const Values& v, NameKind kind, const char* key,
                  const char* sum_key) {
  uint64_t sum = 0;
  out += ",\"" + std::string(key) + "\":{";
  bool first = true;
  for (const Name& name : state().names) {
    if (name.kind != kind || !v[name.slot]) continue;
    if (!first) out += ',';
    first = false;
    append_json_string(out, name.text);
    out += ':' + std::to_string(v[name.slot]);
    sum += v[name.slot];
  }
  out += "},\"" + std::string(sum_key) + "\":" + std::to_string(sum);
}

void append_waits(std::string& out, const Values& v) {
  uint64_t sums[3] = {};
  out += ",\"host_waits\":{";
  bool first = true;
  for (const Name& name : state().names) {
    if (name.kind != NameKind::kWait || !v[name.slot]) continue;
    if (!first) out += ',';
    first = false;
    append_json_string(out, name.text);
    out += ":{\"count\":" + std::to_string(v[name.slot]) +
           ",\"blocked\":" + std::to_string(v[name.slot + 1]) +
           ",\"ns\":" + std::to_string(v[name.slot + 2]) + '}';
    for (size_t i = 0; i < 3; ++i) sums[i] += v[name.slot + i];
  }
  out += "},\"host_wait_count\":" + std::to_string(sums[0]) +
         ",\"host_wait_blocked\":" + std::to_string(sums[1]) +
         ",\"host_wait_ns\":" + std::to_string(sums[2]);
}

void append_allocations(std::string& out, const Values& v) {
  constexpr std::pair<AllocationKind, const char*> kKinds[] = {
      {AllocationKind::kDevice, "device"},
      {AllocationKind::kPinned, "pinned"},
      {AllocationKind::kRegistered, "registered"},
      {AllocationKind::kPhysical, "physical"}};
  out += ",\"allocations\":{";
  for (auto [kind, name] : kKinds) {
    if (kind != AllocationKind::kDevice) out += ',';
    size_t made = allocation_slot(kind, false);
    size_t freed = allocation_slot(kind, true);
    out += '"' + std::string(name) + "\":{\"count\":" + std::to_string(v[made]) +
           ",\"bytes\":" + std::to_string(v[made + 1]) + ",\"freed\":" + std::to_string(v[freed]) +
           ",\"freed_bytes\":" + std::to_string(v[freed + 1]) + '}';
  }
  out += '}';
}

void append_counters(std::string& out, const Values& v) {
  out += '{';
  append_copies(out, v);
  append_waits(out, v);
  append_names(out, v, NameKind::kLaunch, "launches", "launch_count");
  append_names(out, v, NameKind::kCollective, "collectives", "collective_count");
  append_names(out, v, NameKind::kReplayed, "replayed", "replayed_count");
  for (size_t i = 0; i < std::size(kCounterNames); ++i) {
    out += ",\"" + std::string(kCounterNames[i]) + "\":" + std::to_string(v[i]);
  }
  append_allocations(out, v);
  out += '}';
}

std::string live_thread_name(const ThreadCounters& thread) {
  if (!thread.alive) return thread.name;
  std::string path = "/proc/self/task/" + std::to_string(thread.tid) + "/comm";
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (!file) return thread.name;
  char name[32] = "";
  size_t length = std::fread(name, 1, sizeof name - 1, file);
  std::fclose(file);
  if (length && name[length - 1] == '\n') --length;
  return std::string(name, length);
}

std::string snapshot() {
  std::string graphs = graphs_json();
  State& s = state();
  std::lock_guard lock(s.mutex);
  std::string out = "{\"version\":1,\"pid\":" + std::to_string(getpid()) +
                    ",\"pinned_allocations\":" + std::to_string(s.pinned_allocations) +
                    ",\"total\":";
  append_counters(out, minus(sum_of_others(nullptr), s.base));
  out += ",\"threads\":[";
  bool first = true;
  for (const auto& thread : s.threads) {
    if (!first) out += ',';
    first = false;
    out += "{\"tid\":" + std::to_string(thread->tid) + ",\"name\":";
    append_json_string(out, live_thread_name(*thread));
    out += std::string(",\"alive\":") + (thread->alive ? "true" : "false") + ",\"counters\":";
    Values values(kSlots);
    accumulate(*thread, values);
    auto base = s.thread_base.find(thread.get());
    append_counters(out, base == s.thread_base.end() ? values : minus(values, base->second));
    out += '}';
  }
  out += "],\"graphs\":" + graphs + ",\"steps\":{";
  first = true;
  for (const auto& [label, step] : s.steps) {
    if (!first) out += ',';
    first = false;
    append_json_string(out, label);
    out += ":{\"count\":" + std::to_string(step.count) + ",\"this_thread\":";
    append_counters(out, step.own);
    out += ",\"other_threads\":";
    append_counters(out, step.others);
    out += '}';
  }
  out += "}}";
  return out;
}

}  // namespace

void count(Counter counter) { add(static_cast<size_t>(counter), 1); }

void count_launch(const char* name) { add(intern(NameKind::kLaunch, name), 1); }

void count_collective(const char* name) { add(intern(NameKind::kCollective, name), 1); }

void count_replayed(const char* name, uint64_t tasks) {
  add(intern(NameKind::kReplayed, name), tasks);
}

void count_copy(CopyDirection direction, bool asynchronous, bool pinned, size_t bytes) {
  size_t slot = copy_slot(direction, asynchronous, pinned);
  add(slot, 1);
  add(slot + 1, bytes);
}

void count_allocation(AllocationKind kind, size_t bytes) {
  size_t slot = allocation_slot(kind, false);
  add(slot, 1);
  add(slot + 1, bytes);
  if (kind == AllocationKind::kPinned || kind == AllocationKind::kRegistered) {
    ++state().pinned_allocations;
  }
}

void count_free(AllocationKind kind, size_t bytes) {
  size_t slot = allocation_slot(kind, true);
  add(slot, 1);
  add(slot + 1, bytes);
}

HostWait::HostWait(const char* api) : api_(api) {
  if (api_) add(intern(NameKind::kWait, api_), 1);
}

void HostWait::blocked() {
  if (api_ && !start_ns_) start_ns_ = trace_now_ns();
}

HostWait::~HostWait() {
  if (!start_ns_) return;
  size_t slot = intern(NameKind::kWait, api_);
  add(slot + 1, 1);
  add(slot + 2, static_cast<uint64_t>(trace_now_ns() - start_ns_));
}

void write_counters_file() {
  if (!config().counters_path) return;
  const std::string text = snapshot();
  write_output_file("ASCEND_EMU_COUNTERS", *config().counters_path,
                    [&](std::FILE* file) { std::fwrite(text.data(), 1, text.size(), file); });
}

}  // namespace emu

EMU_API size_t emu_counters_json(char* buffer, size_t bytes) {
  return emu::copy_out(emu::snapshot(), buffer, bytes);
}

EMU_API void emu_counters_reset() {
  auto& s = emu::state();
  std::lock_guard lock(s.mutex);
  s.base = emu::sum_of_others(nullptr);
  s.thread_base.clear();
  for (const auto& thread : s.threads) {
    emu::Values values(emu::kSlots);
    emu::accumulate(*thread, values);
    s.thread_base[thread.get()] = std::move(values);
  }
  s.steps.clear();
}

EMU_API int emu_step_begin(const char* label) {
  auto& step = emu::open_step();
  if (!label || step.open) return -1;
  auto& own = emu::mine();
  std::lock_guard lock(emu::state().mutex);
  step.open = true;
  step.label = label;
  step.own.assign(emu::kSlots, 0);
  emu::accumulate(own, step.own);
  step.others = emu::sum_of_others(&own);
  return 0;
}

EMU_API int emu_step_end() {
  auto& step = emu::open_step();
  if (!step.open) return -1;
  auto& own = emu::mine();
  auto& s = emu::state();
  std::lock_guard lock(s.mutex);
  emu::Values own_now(emu::kSlots);
  emu::accumulate(own, own_now);
  emu::Values others_now = emu::sum_of_others(&own);
  emu::Step& total = s.steps[step.label];
  ++total.count;
  for (size_t i = 0, n = s.slots_used; i < n; ++i) {
    total.own[i] += own_now[i] - step.own[i];
    total.others[i] += others_now[i] - step.others[i];
  }
  step.open = false;
  return 0;
}

EMU_API uint64_t emu_pinned_allocations() { return emu::state().pinned_allocations; }

EMU_API const char* emu_version() { return "0.1.0"; }
