// SPDX-License-Identifier: Apache-2.0
// Streams: one worker thread each, which runs the stream's tasks in order. submit() is the only
// way in, so that capture, task updates and the order checker have one place to stand.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checker/order.h"
#include "runtime/api.h"
#include "runtime/budget.h"
#include "runtime/device.h"
#include "runtime/schedule.h"

namespace emu {

// Thrown by a body that waits, when its stream is torn down. Not a device error.
struct TaskInterrupted : std::runtime_error {
  TaskInterrupted() : std::runtime_error("the stream was torn down") {}
};

class Graph;
struct TaskGroup;

// What a graph has to do with a stream: see capture.h and task_group.h. Guarded by the capture
// lock, but for `kind`, which may be read without it.
struct GraphUse {
  enum class Kind : uint8_t { kNone, kCapture, kUpdate };

  std::atomic<Kind> kind{Kind::kNone};
  std::shared_ptr<Graph> graph;  // kCapture
  size_t lane = 0;
  void* handle = nullptr;            // of the graph; on the stream that the capture began on
  std::shared_ptr<TaskGroup> group;  // that is open (kCapture), that is updated (kUpdate)
  std::vector<std::shared_ptr<const Task>> update_tasks;
  std::string update_error;
};

class Stream {
 public:
  Stream(Device& device, uint64_t ordinal, Ticket ticket);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  int32_t id() const { return id_; }

  // Queues without looking at capture or failure: for submit() and for replays of a graph, which
  // push the same task (tasks are copyable values) many times.
  aclError push(Task task);

  // Blocks the calling host thread until everything queued so far has run. `timeout_ms` < 0 waits
  // for ever. Counts as a host wait of `api`, or as none where a caller that waits for several
  // streams counts by itself (null).
  aclError wait(int timeout_ms, const char* api);
  bool idle() const;

  // At exit: drops host code among what is queued and waits, but not beyond `until`, for the rest.
  void finish(std::chrono::steady_clock::time_point until);

  // Forgets what is queued and interrupts what waits; what computes goes on to its end. Event
  // records among them still happen, since others wait for them.
  void drop_queued();

  enum class Queued { kRun, kDrop };
  // Ends the worker and joins it. True if it ended within the time given.
  bool stop(Queued queued, int timeout_ms = -1);

  // True on the worker of a stream that is being torn down: see check_interrupted().
  bool interrupted() const;

  std::atomic<uint64_t> report_thread{0};  // aclrtSubscribeReport
  GraphUse graph_use;
  const check::StreamAgent agent;

 private:
  void work();
  void run(Task& task);

  Device& device_;
  const Ticket ticket_;
  const int32_t id_;
  TaskSchedule schedule_;
  mutable std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable progress_;
  std::deque<Task> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool stopping_ = false;
  bool ended_ = false;
  // Tasks are numbered from 1 in order of submission.
  std::atomic<uint64_t> running_{0};
  std::atomic<uint64_t> interrupt_through_{0};
  std::thread worker_;  // last: it starts when everything else is there
};

// On a worker: the id of its stream; -1 elsewhere.
int32_t worker_stream_id();

// The stream behind a handle; null means the current device's default stream. Null (message set)
// if the handle is not valid.
std::shared_ptr<Stream> find_stream(aclrtStream handle, const char* api);

// The check at the head of every operation that reaches a device: poison, then failure.
aclError check_usable(const Device& device, const char* api);

// submit() for a stream that was looked up already.
aclError submit_to(Stream& stream, Task task);

// At exit: what was asked for still runs, for a short time, but for host code, which may be gone.
void finish_all_streams();
// At exit. False if a worker did not end.
bool stop_all_streams();

}  // namespace emu
