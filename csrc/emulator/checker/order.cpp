// SPDX-License-Identifier: Apache-2.0
#include "checker/order.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <random>
#include <set>
#include <unordered_map>

#include "checker/findings.h"
#include "checker/host_buffers.h"
#include "checker/shadow.h"
#include "checker/stall.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/guard.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace emu::check {
namespace {

struct Worker {
  Agent agent = kHost;
  int32_t stream = -1;
  uint64_t replay = 0;
  OperationPtr running;
  std::vector<ByteRange> noted;  // by the body that runs, instead of the whole of its tensors
};

// kHost on every thread but the workers of streams.
thread_local Worker worker;

struct State {
  std::mutex mutex;
  std::vector<Clock> clocks{Clock{}};  // by agent
  std::vector<Agent> unused;
  Shadow memory;
  Shadow groups;   // one byte for each task group
  Shadow in_turn;  // one for each thing of Task::in_turn
  std::unordered_map<const void*, SyncPoint> words;
  std::unordered_map<const void*, Access> changes;  // of each flag, the last
  std::map<std::string, int> registering;           // threads that are at it, by kernel
  std::set<std::string> registered;
  std::condition_variable registration;  // another thread came, or it is held no more
  bool is_registration_held = false;
  uint64_t submissions = 0;
  std::vector<uint64_t> looks;
};

constexpr size_t kLooksKept = 4096;

State& state() {
  static auto* instance = new State;
  return *instance;
}

Clock& clock_of(Agent agent) {
  State& s = state();
  if (agent >= s.clocks.size()) s.clocks.resize(agent + 1);
  return s.clocks[agent];
}

// A number that no other process has, also after this one's id has gone to another.
uint64_t own_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

uintptr_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }

bool touches_memory(TaskKind kind) {
  switch (kind) {
    case TaskKind::kOperator:
    case TaskKind::kCopy:
    case TaskKind::kMemset:
    case TaskKind::kCollective:
      return true;
    default:
      return false;
  }
}

// Pageable memory is the application's: it comes and goes without our knowing, and no copy of it
// outlives its call.
bool is_tracked(const void* address, size_t bytes) {
  return classify(address, bytes).kind != MemoryKind::kPageable;
}

// With the lock.
void note_look(const Operation& operation) {
  auto& looks = state().looks;
  if (looks.size() < kLooksKept) looks.push_back(operation.number);
}

bool is_gone(const ByteRange& access) {
  return classify(access.address, access.bytes).kind == MemoryKind::kInvalid;
}

const char* access_name(bool is_write) { return is_write ? "write" : "read"; }

std::string advice_for(const Operation& first, const Operation& second) {
  if (first.stream < 0) return "let the host touch the memory only when the device may not";
  if (second.stream < 0) {
    return "wait for stream " + std::to_string(first.stream) +
           " (or an event after the first) "
           "before the host goes on";
  }
  return "record an event on stream " + std::to_string(first.stream) +
         " after the first, and let stream " + std::to_string(second.stream) +
         " wait for it before the second";
}

// With the lock. Findings are collected, and reported when it is not held.
void check_access(const OperationPtr& operation, const ByteRange& range, Epoch epoch,
                  uint64_t replay, const Clock& clock, std::vector<Finding>& findings) {
  Access access{epoch, operation, replay, range.is_write};
  uintptr_t begin = bits(range.address);
  state().memory.touch(
      begin, begin + range.bytes, access, clock,
      [&](const Access& earlier, uintptr_t from, uintptr_t to) {
        // Which ran first is chance; which was asked for first is what the program says.
        Side first{earlier.operation, access_name(earlier.is_write), earlier.replay};
        Side second{operation, access_name(range.is_write), replay};
        if (second.operation->number < first.operation->number) std::swap(first, second);
        findings.push_back({Kind::kUnorderedAccess,
                            std::string("a ") + first.access + " and a " + second.access +
                                " of the same memory that nothing orders",
                            advice_for(*first.operation, *second.operation),
                            from,
                            to,
                            {first, second}});
      });
}

Finding use_after_free(const OperationPtr& operation, const ByteRange& access) {
  return {Kind::kUseAfterFree,
          "an operation runs on device memory that was freed after it was submitted",
          "keep the memory until the operation has run",
          bits(access.address),
          bits(access.address) + access.bytes,
          {{operation, access_name(access.is_write), worker.replay}}};
}

Finding unordered_turns(const Access& earlier, const Access& later) {
  Side first{earlier.operation, "", earlier.replay};
  Side second{later.operation, "", later.replay};
  if (second.operation->number < first.operation->number) std::swap(first, second);
  return {Kind::kUnorderedCollective,
          "two operations of one communicator run on streams that nothing orders: they share its "
          "buffers, and on another rank they may come the other way round",
          "let the second stream wait for an event that is recorded after the first operation, or "
          "use two communicators",
          0,
          0,
          {first, second}};
}

void report_all(const std::vector<Finding>& findings) {
  report_pending();
  for (const Finding& finding : findings) report(finding);
}

// With the lock.
void host_comes_after(const Clock& clock) {
  clock_of(kHost).join(clock);
  host_knows_more();
}

void host_joins_agent(Agent agent) {
  if (!on()) return;
  {
    std::lock_guard guard(lock());
    host_comes_after(clock_of(agent));
  }
  report_pending();
}

std::shared_ptr<Operation> make_operation(const char* name, TaskKind kind, int device,
                                          int32_t stream, StackId stack) {
  auto operation = std::make_shared<Operation>();
  operation->name = name;
  operation->kind = kind;
  operation->device = device;
  operation->stream = stream;
  operation->thread = thread_name();
  operation->stack = stack;
  operation->is_captured = false;
  return operation;
}

}  // namespace

std::mutex& lock() { return state().mutex; }

const Clock& host_clock() { return clock_of(kHost); }

OperationPtr host_operation(const char* api, const void* address, size_t bytes, StackId stack) {
  auto operation = make_operation(api, TaskKind::kHostFunction, -1, -1, stack);
  operation->number = ++state().submissions;
  operation->accesses = {{address, bytes, false}};
  return operation;
}

void SyncPoint::release() {
  if (!on()) return;
  std::lock_guard guard(lock());
  clock_.join(clock_of(worker.agent));
  if (worker.agent == kHost) clock_of(kHost).tick(kHost);
}

void SyncPoint::acquire() const {
  if (!on()) return;
  {
    std::lock_guard guard(lock());
    if (worker.agent == kHost) {
      host_comes_after(clock_);
    } else {
      clock_of(worker.agent).join(clock_);
    }
  }
  report_pending();
}

StreamAgent::StreamAgent() {
  if (!on()) return;
  static std::once_flag once;
  std::call_once(once, load_suppressions);
  std::lock_guard guard(lock());
  State& s = state();
  if (s.unused.empty()) {
    agent_ = static_cast<Agent>(s.clocks.size());
    s.clocks.emplace_back();
  } else {
    agent_ = s.unused.back();
    s.unused.pop_back();
  }
}

StreamAgent::~StreamAgent() {
  if (agent_ == kHost) return;
  std::lock_guard guard(lock());
  state().unused.push_back(agent_);
}

void become(const StreamAgent& agent, int32_t stream_id) {
  worker.agent = agent.agent();
  worker.stream = stream_id;
}

void submitting(const Stream& stream, Task& task, bool is_captured) {
  if (!on() || task.operation) return;
  moved();
  StackId stack = task.stack ? task.stack : capture_stack();
  auto operation =
      make_operation(task.name, task.kind, stream.device().index(), stream.id(), stack);
  operation->is_captured = is_captured;
  operation->in_turn = task.in_turn;
  for (const ByteRange& access : task.accesses) {
    if (touches_memory(task.kind) && is_tracked(access.address, access.bytes)) {
      operation->accesses.push_back(access);
    }
  }
  std::lock_guard guard(lock());
  operation->number = ++state().submissions;
  operation->host = clock_of(kHost);
  task.operation = std::move(operation);
}

Running::Running(const Task& task, const void* group) : outer_(worker.running) {
  if (!on() || !task.operation) return;
  const OperationPtr& operation = task.operation;
  moved();
  worker_runs(worker.stream, operation);
  worker.running = operation;
  std::vector<Finding> findings;
  {
    std::lock_guard guard(lock());
    clock_of(worker.agent).join(operation->host);
    Epoch epoch = epoch_ = clock_of(worker.agent).tick(worker.agent);
    const Clock& clock = clock_of(worker.agent);
    if (operation->kind == TaskKind::kCopy) copy_begins(operation, epoch);
    if (operation->kind == TaskKind::kCollective) before_ = clock;
    for (const void* thing : operation->in_turn) {
      Access access{epoch, operation, worker.replay, true};
      state().in_turn.touch(bits(thing), bits(thing) + 1, access, clock,
                            [&](const Access& earlier, uintptr_t, uintptr_t) {
                              findings.push_back(unordered_turns(earlier, access));
                            });
    }
    for (const ByteRange& access : operation->accesses) {
      if (is_gone(access)) {
        has_memory_ = false;
      } else if (auto memory = keep_mapped(access.address)) {
        memory_.push_back(std::move(memory));
      }
    }
    if (group) {
      Access access{epoch, operation, worker.replay, false};
      state().groups.touch(
          bits(group), bits(group) + 1, access, clock,
          [&](const Access& earlier, uintptr_t, uintptr_t) {
            findings.push_back(
                {Kind::kUnorderedUpdate,
                 "a replay runs a task whose update is not ordered before it",
                 "let the replay wait for an event that is recorded after the "
                 "update",
                 0,
                 0,
                 {{earlier.operation, "update", 0}, {operation, "run", worker.replay}}});
          });
    }
  }
  report_all(findings);
}

Running::~Running() {
  if (!on()) return;
  if (epoch_.count) {
    std::vector<Finding> findings;
    {
      std::lock_guard guard(lock());
      const Clock& now = clock_of(worker.agent);
      bool is_freed = false;
      if (!worker.running->accesses.empty()) note_look(*worker.running);
      for (const ByteRange& access : worker.running->accesses) {
        if (is_gone(access)) {
          if (!is_freed) findings.push_back(use_after_free(worker.running, access));
          is_freed = true;
          continue;
        }
        const Clock& clock = before_ && !access.is_write ? *before_ : now;
        const bool is_refined =
            std::any_of(worker.noted.begin(), worker.noted.end(), [&](const ByteRange& piece) {
              return bits(piece.address) - bits(access.address) < access.bytes;
            });
        if (is_refined) continue;
        check_access(worker.running, access, epoch_, worker.replay, clock, findings);
      }
      for (const ByteRange& piece : worker.noted) {
        if (is_gone(piece)) continue;  // it lies in one of the above
        check_access(worker.running, piece, epoch_, worker.replay, now, findings);
      }
    }
    worker.noted.clear();
    report_all(findings);
  }
  moved();
  worker.running = outer_;
  if (outer_) {
    worker_runs(worker.stream, outer_);
  } else {
    worker_is_idle(worker.stream);
  }
}

Blocked::Blocked(std::string what) {
  if (on()) worker_waits(worker.stream, what);
}

Blocked::~Blocked() {
  if (on()) worker_runs(worker.stream, worker.running);
}

void host_joins(const StreamAgent& stream) {
  if (stream.agent() != kHost) host_joins_agent(stream.agent());
}

void host_code_begins() { host_joins_agent(worker.agent); }

void host_code_ends() {
  if (!on()) return;
  std::lock_guard guard(lock());
  clock_of(worker.agent).join(clock_of(kHost));
}

InReplay::InReplay(uint64_t number) { worker.replay = number; }

InReplay::~InReplay() { worker.replay = 0; }

void Fork::split() { begin_.release(); }

void Fork::branch_begins() { begin_.acquire(); }

void Fork::branch_ends() { end_.release(); }

void Fork::join() { end_.acquire(); }

void group_updated(const void* group) {
  if (!on() || !worker.running) return;
  std::vector<Finding> findings;
  {
    std::lock_guard guard(lock());
    const Clock& clock = clock_of(worker.agent);
    Access access{{worker.agent, clock.of(worker.agent)}, worker.running, 0, true};
    state().groups.touch(
        bits(group), bits(group) + 1, access, clock,
        [&](const Access& earlier, uintptr_t, uintptr_t) {
          findings.push_back(
              {Kind::kUnorderedUpdate,
               "a task of a graph is updated, and nothing says that the replay "
               "before has run it",
               "record an event on the stream of the replay, and let the update "
               "stream wait for it before the update",
               0,
               0,
               {{earlier.operation, earlier.is_write ? "update" : "run", earlier.replay},
                {worker.running, "update", 0}}});
        });
  }
  report_all(findings);
}

void flag_changes(const void* flag, uint64_t before, uint64_t after) {
  if (!on() || !worker.running) return;
  const char* advice =
      "record the event only after the replay before has ended (an event after it on its stream)";
  const char* what = after ? "set" : "clear";
  std::vector<Finding> findings;
  auto find = [&](const char* message, const Access& earlier) {
    findings.push_back(
        {Kind::kUnorderedRecord,
         message,
         advice,
         0,
         0,
         {{earlier.operation, "change", earlier.replay}, {worker.running, what, worker.replay}}});
  };
  {
    std::lock_guard guard(lock());
    State& s = state();
    const Clock& clock = clock_of(worker.agent);
    Access access{{worker.agent, clock.of(worker.agent)}, worker.running, worker.replay, true};
    auto [last, is_first] = s.changes.try_emplace(flag, access);
    if (!is_first) {
      const Access& earlier = last->second;
      if (!clock.covers(earlier.epoch)) {
        find(
            "an event is set and cleared by two streams that nothing orders: the one may be lost, "
            "and who waits for it waits for ever",
            earlier);
      } else if (after && after == before) {
        find(
            "an event is recorded again before anybody has reset it: one of the two records is "
            "lost, and who waits for it waits for ever",
            earlier);
      }
      last->second = access;
    }
  }
  report_all(findings);
}

void flag_is_gone(const void* flag) {
  if (!on()) return;
  std::lock_guard guard(lock());
  state().changes.erase(flag);
}

SyncPoint& word(const void* address) {
  std::lock_guard guard(lock());
  return state().words[address];
}

void host_touches(const char* api, const void* source, void* destination, size_t bytes) {
  if (!on()) return;
  StackId stack = capture_stack();
  std::vector<Finding> findings;
  {
    std::lock_guard guard(lock());
    auto operation = make_operation(api, TaskKind::kCopy, -1, -1, stack);
    operation->number = ++state().submissions;
    if (source && is_tracked(source, bytes)) operation->accesses.push_back({source, bytes, false});
    if (is_tracked(destination, bytes)) operation->accesses.push_back({destination, bytes, true});
    OperationPtr made = std::move(operation);
    Epoch epoch = clock_of(kHost).tick(kHost);
    note_look(*made);
    for (const ByteRange& access : made->accesses) {
      check_access(made, access, epoch, 0, clock_of(kHost), findings);
    }
  }
  report_all(findings);
}

Freeing::Freeing(const char* api) : api_(api) {
  if (!on()) return;
  stack_ = capture_stack();
  lock_ = std::unique_lock(lock());
}

void Freeing::gone(const void* address, size_t bytes) {
  if (!on()) return;
  const OperationPtr free = host_operation(api_, address, bytes, stack_);
  note_look(*free);
  Shadow& memory = state().memory;
  memory.for_each_uncovered(
      bits(address), bits(address) + bytes, clock_of(kHost),
      [&](const Access& earlier, uintptr_t from, uintptr_t to) {
        findings_.push_back(
            {Kind::kFreedInUse,
             "device memory is freed, and nothing says that an operation on it is "
             "done",
             "wait for the operation before the memory is freed",
             from,
             to,
             {{earlier.operation, access_name(earlier.is_write), earlier.replay}, {free, "", 0}}});
      });
  memory.forget(bits(address), bits(address) + bytes);
}

Freeing::~Freeing() {
  if (!on()) return;
  lock_.unlock();
  report_all(findings_);
}

void memory_is_new(const void* address, size_t bytes) {
  if (!on()) return;
  std::lock_guard guard(lock());
  state().memory.forget(bits(address), bits(address) + bytes);
}

aclError register_kernel(const char* name) {
  if (!on()) return ACL_SUCCESS;
  State& s = state();
  {
    std::unique_lock guard(lock());
    const auto time = std::chrono::microseconds(config().check_register_us);
    if (s.registered.contains(name)) return ACL_SUCCESS;
    if (!s.is_registration_held && time.count() == 0) {
      s.registered.insert(name);
      return ACL_SUCCESS;
    }
    if (++s.registering[name] == 1) {
      // Long enough that another thread which starts at the same time is seen.
      const auto is_seen = [&] { return s.registering[name] > 1; };
      s.registration.wait_for(guard, time, is_seen);
      s.registration.wait(guard, [&] { return is_seen() || !s.is_registration_held; });
      s.registered.insert(name);
      s.registering.erase(name);
      return ACL_SUCCESS;
    }
    s.registration.notify_all();
  }
  StackId stack = capture_stack();
  OperationPtr operation;
  {
    std::lock_guard guard(lock());
    auto made = make_operation(name, TaskKind::kOperator, -1, -1, stack);
    made->number = ++s.submissions;
    operation = std::move(made);
  }
  report({Kind::kKernelRegistration,
          std::string("two threads launch ") + name +
              " for the first time at once, and both register its kernel",
          "let one thread launch each kernel once (a warm-up) before others start",
          0,
          0,
          {{operation, "", 0}}});
  constexpr aclError kKernelRegistration = 507028;
  return config().check == CheckMode::kStrict
             ? fail(kKernelRegistration,
                    std::string(name) + ": the kernel is being registered by another thread")
             : ACL_SUCCESS;
}

void forget_history() {
  std::lock_guard guard(lock());
  State& s = state();
  s.memory.clear();
  s.groups.clear();
  s.in_turn.clear();
  s.words.clear();
  s.changes.clear();
  s.registered.clear();
  s.submissions = 0;
  s.looks.clear();
  forget_copies();
}

std::vector<uint64_t> looks() {
  std::lock_guard guard(lock());
  return state().looks;
}

}  // namespace emu::check

EMU_API void emu_check_hold_registration(int on) {
  auto& s = emu::check::state();
  std::lock_guard guard(s.mutex);
  s.is_registration_held = on != 0;
  s.registration.notify_all();
}

void emu::note_access(const void* alias, size_t bytes, bool is_write) {
  if (!check::on() || !bytes) return;
  check::worker.noted.push_back(
      {AddressSpace::instance().application_address(alias), bytes, is_write});
}

emu::WaitForPeers::WaitForPeers(std::string what, std::function<bool()> are_peers_stalled,
                                std::function<void(bool)> tell_peers) {
  if (!check::on()) return;
  check::worker_waits(check::worker.stream, what);
  check::worker_waits_for_peers(
      check::worker.stream,
      std::make_unique<const check::Peers>(thread_device_index(), std::move(are_peers_stalled),
                                           std::move(tell_peers)));
}

emu::WaitForPeers::~WaitForPeers() {
  if (!check::on()) return;
  check::worker_waits_for_peers(check::worker.stream, nullptr);
  check::worker_runs(check::worker.stream, check::worker.running);
}

bool emu::is_checking() { return check::on(); }

std::vector<uint32_t> emu::order_to_send() {
  if (!check::on()) return {};
  std::lock_guard guard(check::lock());
  return check::clock_of(check::worker.agent).pack(check::own_process());
}

void emu::order_received(const uint32_t* words, size_t count) {
  if (!check::on()) return;
  std::lock_guard guard(check::lock());
  check::clock_of(check::worker.agent).join_packed(words, count, check::own_process());
}

uint32_t emu::launch_stack() { return check::on() ? check::capture_stack() : 0; }

aclError emu::register_kernel(const char* name) { return check::register_kernel(name); }
