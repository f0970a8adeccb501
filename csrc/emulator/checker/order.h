// SPDX-License-Identifier: Apache-2.0
// What happens before what, and what is therefore a race. The seam to the runtime: each call says
// that something happened, and costs one branch where the checker is off.
//
// Edges: a stream runs its tasks in order; a task comes after all that the host knew when it
// submitted it; a wait comes after the record that it waited for; a host thread that has waited,
// or has seen an event or a stream complete, comes after what it waited for; a replay forks to its
// branches and joins them; host code in a stream comes between its tasks; who received something
// from another rank comes after all that was before its sending. Nothing else orders two streams,
// whatever the clock on the wall says.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checker/clock.h"
#include "checker/findings.h"
#include "checker/operation.h"
#include "runtime/api.h"
#include "runtime/config.h"

namespace emu {
class Stream;
}

namespace emu::check {

inline bool on() {
  static const bool is_on = config().check != CheckMode::kOff;
  return is_on;
}

// Carries an order from who releases it to who acquires it: an event's record, a word in memory,
// an edge of a graph.
class SyncPoint {
 public:
  // By the worker of a stream; by the host on any other thread.
  void release();
  void acquire() const;

 private:
  Clock clock_;  // guarded by the checker's lock
};

// A stream, as the checker sees it. Agents of streams that are gone are used again.
class StreamAgent {
 public:
  StreamAgent();
  ~StreamAgent();
  StreamAgent(const StreamAgent&) = delete;
  StreamAgent& operator=(const StreamAgent&) = delete;
  Agent agent() const { return agent_; }

 private:
  Agent agent_ = kHost;
};

// On a stream's worker, once.
void become(const StreamAgent& agent, int32_t stream_id);

// The calling host thread submits `task` (or has it captured): notes who did, and what the host
// knew.
void submitting(const Stream& stream, Task& task, bool is_captured);

// On a worker, around the task's body: orders it, and at its end checks what it touched. `group`:
// the task group that it belongs to, in a replay. The tasks of a replay are inside the replay's
// own.
class Running {
 public:
  explicit Running(const Task& task, const void* group = nullptr);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // All its memory is there. What is freed from now on stays mapped until it has run.
  bool has_memory() const { return has_memory_; }

 private:
  bool has_memory_ = true;
  std::vector<std::shared_ptr<const void>> memory_;
  OperationPtr outer_;
  Epoch epoch_;
  // Of a collective, which reads before it hears from other ranks: the clock that it began with.
  std::optional<Clock> before_;
};

// On a worker, around a wait that others must end.
class Blocked {
 public:
  explicit Blocked(std::string what);
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
};

// The calling host thread knows that all of `stream` that it asked for is done.
void host_joins(const StreamAgent& stream);
// Host code runs on this worker, between the tasks before and those after it.
void host_code_begins();
void host_code_ends();

// On workers: a replay's number, and its branches.
class InReplay {
 public:
  explicit InReplay(uint64_t number);
  ~InReplay();
  InReplay(const InReplay&) = delete;
  InReplay& operator=(const InReplay&) = delete;
};
class Fork {
 public:
  void split();          // on the first lane's worker
  void branch_begins();  // on a branch's worker
  void branch_ends();    //
  void join();           // on the first lane's worker, when all branches ended

 private:
  SyncPoint begin_;
  SyncPoint end_;
};
// A task group's tasks are replaced.
void group_updated(const void* group);

// External events (1 and 0) and words in memory are flags: each change must come after the one
// before, and setting what is set is a record that nobody will see.
void flag_changes(const void* flag, uint64_t before, uint64_t after);
// Its address means another from now on.
void flag_is_gone(const void* flag);
// The word of a value write or wait.
SyncPoint& word(const void* address);

// The host touches device memory by a synchronous call.
void host_touches(const char* api, const void* source, void* destination, size_t bytes);
// Device memory is allocated.
void memory_is_new(const void* address, size_t bytes);
// Device memory goes, from construction to destruction: an operation that runs meanwhile is looked
// at either before or after that.
class Freeing {
 public:
  explicit Freeing(const char* api);
  ~Freeing();
  Freeing(const Freeing&) = delete;
  Freeing& operator=(const Freeing&) = delete;

  // Nobody can use [address, address + bytes) any more.
  void gone(const void* address, size_t bytes);

 private:
  const char* api_;
  StackId stack_ = 0;
  std::unique_lock<std::mutex> lock_;
  std::vector<Finding> findings_;
};

// The calling thread launches the kernel `name`: its first launch registers it, for a while.
aclError register_kernel(const char* name);

// For emu_check_reset() and emu_check_looks().
void forget_history();
std::vector<uint64_t> looks();

// For the other files of the checker. All that they keep is guarded by this lock too.
std::mutex& lock();
// With the lock.
const Clock& host_clock();
OperationPtr host_operation(const char* api, const void* address, size_t bytes, StackId stack);

}  // namespace emu::check
