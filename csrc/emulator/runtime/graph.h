// SPDX-License-Identifier: Apache-2.0
// Captured graphs as data: lanes of nodes, the edges between lanes, task groups. Who makes them is
// in capture.cpp, who changes them in task_group.cpp, who runs them in replay.cpp.
//
// A lane is what one stream submitted while it was captured. Nodes of a lane run in order; lanes
// run in parallel but for edges: a record in one lane that a wait in another waits for. Once its
// capture has ended, all of a graph is constant but the tasks of task groups.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/api.h"
#include "runtime/budget.h"
#include "runtime/handles.h"
#include "runtime/schedule.h"
#include "runtime/stream.h"

namespace emu {

class Node {
 public:
  enum class Kind : uint8_t { kTask, kEdgeRecord, kEdgeWait };

  explicit Node(Task task, std::shared_ptr<const void> group = nullptr)
      : kind(Kind::kTask),
        group(std::move(group)),
        task_(std::make_shared<const Task>(std::move(task))) {}
  Node(Kind edge_kind, size_t edge) : kind(edge_kind), edge(edge) {}

  // The task as it is now. Who runs it keeps what it got: an update changes later runs only.
  std::shared_ptr<const Task> task() const {
    std::lock_guard lock(mutex_);
    return task_;
  }
  void replace(std::shared_ptr<const Task> task) {
    std::lock_guard lock(mutex_);
    task_.swap(task);
  }

  const Kind kind;
  const size_t edge = 0;
  const std::shared_ptr<const void> group;  // the id of its task group, or null

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Task> task_;
};

struct Lane {
  Lane(int device, uint64_t schedule_key, int32_t stream_id, Ticket ticket)
      : schedule(device, schedule_key), stream_id(stream_id), ticket(std::move(ticket)) {}

  std::vector<std::shared_ptr<Node>> nodes;
  TaskSchedule schedule;    // used by replays only, which are one at a time
  const int32_t stream_id;  // of the stream that was captured
  Ticket ticket;            // the stream that a captured stream costs
};

class Graph;

// The tasks between a group's begin and end: those that an update replaces, all at once.
struct TaskGroup {
  const std::shared_ptr<const void> id = std::make_shared<char>();
  std::vector<std::shared_ptr<Node>> nodes;
  std::weak_ptr<Graph> graph;
  bool updating = false;  // guarded by the capture lock
};

class Graph {
 public:
  enum class State : uint8_t { kCapturing, kInvalidated, kReady };

  Graph(Device& device, aclmdlRICaptureMode mode);

  Device& device() const { return device_; }
  uint32_t id() const { return id_; }
  aclmdlRICaptureMode mode() const { return mode_; }

  // While capturing, all guarded by the capture lock.
  std::atomic<State> state{State::kCapturing};
  std::string why_invalid;
  pid_t capture_thread = 0;
  std::vector<std::shared_ptr<Stream>> captured_streams;  // of the lanes; empty after the capture
  size_t open_groups = 0;

  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Ticket> edge_events;  // one for each edge, by edge
  std::vector<void*> group_handles;

  // Done when the capture has ended well.
  void seal();
  size_t node_count() const { return node_count_; }
  size_t edge_count() const { return edge_count_; }
  // Nodes of tasks by the task's name.
  const std::vector<std::pair<const char*, uint64_t>>& nodes_by_name() const {
    return nodes_by_name_;
  }

  // Gives back what the graph costs its device, at the moment that it is destroyed and not when the
  // last worker has let go of it.
  void release_tickets();

  // A replay is in flight from its submission until its task is gone, run or dropped.
  void enter_flight() { ++in_flight_; }
  void leave_flight();
  // False after `timeout_ms`.
  bool wait_landed(int timeout_ms, const char* api);

  // Replays of one graph are one at a time, whatever their streams. take_turn() waits on a worker
  // and throws TaskInterrupted.
  void take_turn();
  void end_turn();

  std::atomic<uint64_t> replays{0};
  std::atomic<uint64_t> updates{0};

 private:
  Device& device_;
  const uint32_t id_;
  const aclmdlRICaptureMode mode_;
  size_t node_count_ = 0;
  size_t edge_count_ = 0;
  std::vector<std::pair<const char*, uint64_t>> nodes_by_name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> in_flight_{0};
  bool running_ = false;
};

HandleTable<Graph>& graphs();
HandleTable<TaskGroup>& task_groups();

// A graph behind a handle that can be replayed; null (message set, code in `error`) if there is
// none or its capture has not ended.
std::shared_ptr<Graph> find_ready_graph(aclmdlRI handle, const char* api, aclError* error);

// A JSON array of the graphs that exist, for the counters.
std::string graphs_json();

// Ends the threads that replays with several lanes use. At exit, after all streams.
void stop_branch_streams();

}  // namespace emu
