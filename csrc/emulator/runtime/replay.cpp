// SPDX-License-Identifier: Apache-2.0
// Replay: one task on one stream that runs a captured graph. Its first lane runs on the stream's
// worker, the others on branch streams, which are taken from a pool for the time of the replay.
#include <algorithm>
#include <chrono>

#include "checker/order.h"
#include "runtime/counters.h"
#include "runtime/error.h"
#include "runtime/execute.h"
#include "runtime/graph.h"
#include "runtime/process.h"

namespace emu {
namespace {

// Streams that nobody but replays sees. They cost nothing of the budget: that was paid when the
// lane was captured.
class BranchPool {
 public:
  std::shared_ptr<Stream> take(Device& device) {
    std::lock_guard lock(mutex_);
    auto idle = std::find_if(idle_.begin(), idle_.end(),
                             [&](const auto& stream) { return &stream->device() == &device; });
    if (idle == idle_.end()) {
      // Ordinals of their own, so that the other streams' delays stay what they are.
      constexpr uint64_t kFirstOrdinal = uint64_t{1} << 32;
      return all_.emplace_back(
          std::make_shared<Stream>(device, kFirstOrdinal + all_.size(), Ticket()));
    }
    auto stream = std::move(*idle);
    idle_.erase(idle);
    return stream;
  }

  void give_back(std::shared_ptr<Stream> stream) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(stream));
  }

  void stop() {
    std::vector<std::shared_ptr<Stream>> all;
    {
      std::lock_guard lock(mutex_);
      all.swap(all_);
      idle_.clear();
    }
    for (const auto& stream : all) stream->stop(Stream::Queued::kDrop);
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> all_;
  std::vector<std::shared_ptr<Stream>> idle_;
};

BranchPool& branch_pool() {
  static auto* pool = new BranchPool;
  return *pool;
}

class Replay : public std::enable_shared_from_this<Replay> {
 public:
  explicit Replay(std::shared_ptr<Graph> graph)
      : graph_(std::move(graph)),
        recorded_(graph_->edge_count(), false),
        order_(graph_->edge_count()) {}

  // On the worker of the stream that the graph is replayed on.
  void run() {
    graph_->take_turn();
    struct EndTurn {
      Graph& graph;
      ~EndTurn() { graph.end_turn(); }
    } end_turn{*graph_};
    number_ = ++graph_->replays;
    if (graph_->lanes.size() == 1) return run_lane(0);
    fork_.split();
    fork();
    try {
      run_lane(0);
      join();
      fork_.join();
    } catch (...) {
      abandon();
      throw;
    }
  }

 private:
  void run_lane(size_t index) {
    Lane& lane = *graph_->lanes[index];
    check::InReplay in_replay(number_);
    for (const auto& node : lane.nodes) {
      check_interrupted();
      lane.schedule.before_task();
      switch (node->kind) {
        case Node::Kind::kEdgeRecord:
          record(node->edge);
          break;
        case Node::Kind::kEdgeWait:
          wait(node->edge);
          break;
        case Node::Kind::kTask: {
          auto task = node->task();
          if (is_event_task(*task)) lane.schedule.around_event();
          execute_captured(graph_->device(), *task, node->group.get());
          if (is_event_task(*task)) lane.schedule.around_event();
          break;
        }
      }
    }
  }

  static bool is_event_task(const Task& task) {
    switch (task.kind) {
      case TaskKind::kEventRecord:
      case TaskKind::kEventWait:
      case TaskKind::kEventReset:
      case TaskKind::kValueWrite:  // torch_npu's external events
      case TaskKind::kValueWait:
        return true;
      default:
        return false;
    }
  }

  void record(size_t edge) {
    order_[edge].release();
    std::lock_guard lock(mutex_);
    recorded_[edge] = true;
    changed_.notify_all();
  }

  void wait(size_t edge) {
    {
      check::Blocked blocked("another stream of its graph");
      std::unique_lock lock(mutex_);
      while (!recorded_[edge] && !graph_->device().failed()) {
        check_interrupted();
        changed_.wait_for(lock, std::chrono::milliseconds(kInterruptPollMs));
      }
    }
    order_[edge].acquire();
  }

  void fork() {
    for (size_t lane = 1; lane < graph_->lanes.size(); ++lane) {
      auto stream = branch_pool().take(graph_->device());
      {
        std::lock_guard lock(mutex_);
        ++branches_left_;
      }
      // Goes when the branch has run or was dropped.
      std::shared_ptr<void> ended(nullptr, [self = shared_from_this()](void*) {
        std::lock_guard lock(self->mutex_);
        --self->branches_left_;
        self->changed_.notify_all();
      });
      branches_.push_back(stream);
      stream->push({"graph_branch",
                    TaskKind::kGraphBranch,
                    [this, lane, ended = std::move(ended)] {
                      fork_.branch_begins();
                      run_lane(lane);
                      fork_.branch_ends();
                    },
                    {}});
    }
  }

  // Throws TaskInterrupted if this worker is to give up.
  void join() {
    check::Blocked blocked("the other streams of its graph");
    std::unique_lock lock(mutex_);
    while (branches_left_) {
      check_interrupted();
      changed_.wait_for(lock, std::chrono::milliseconds(kInterruptPollMs));
    }
    lock.unlock();
    give_back();
  }

  // Interrupts the branches and waits for what computes in them.
  void abandon() {
    for (const auto& stream : branches_) stream->drop_queued();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return branches_left_ == 0; });
    lock.unlock();
    give_back();
  }

  void give_back() {
    for (auto& stream : branches_) branch_pool().give_back(std::move(stream));
    branches_.clear();
  }

  const std::shared_ptr<Graph> graph_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> recorded_;           // by edge
  std::vector<check::SyncPoint> order_;  // by edge
  check::Fork fork_;
  uint64_t number_ = 0;
  std::vector<std::shared_ptr<Stream>> branches_;
  size_t branches_left_ = 0;
};

aclError replay(const char* api, aclmdlRI handle, aclrtStream stream_handle) {
  aclError error = ACL_SUCCESS;
  auto graph = find_ready_graph(handle, api, &error);
  if (!graph) return error;
  auto stream = find_stream(stream_handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (&stream->device() != &graph->device()) {
    return fail(ACL_ERROR_RT_STREAM_CONTEXT,
                std::string(api) + ": the graph was captured on device " +
                    std::to_string(graph->device().index()) + ", the stream belongs to device " +
                    std::to_string(stream->device().index()));
  }
  graph->enter_flight();
  std::shared_ptr<void> flight(nullptr, [graph](void*) { graph->leave_flight(); });
  error = submit_to(
      *stream, {"graph_replay",
                TaskKind::kGraphReplay,
                [graph, flight = std::move(flight)] { std::make_shared<Replay>(graph)->run(); },
                {}});
  if (error) return error;
  for (const auto& [name, nodes] : graph->nodes_by_name()) count_replayed(name, nodes);
  return ACL_SUCCESS;
}

}  // namespace

std::shared_ptr<Graph> find_ready_graph(aclmdlRI handle, const char* api, aclError* error) {
  auto graph = graphs().find(handle);
  if (!graph) {
    *error = graphs().refuse(api, handle);
    return nullptr;
  }
  if (graph->state != Graph::State::kReady) {
    *error = fail(ACL_ERROR_RT_MODEL_CAPTURED, std::string(api) + ": the capture of graph " +
                                                   std::to_string(graph->id()) + " has not ended");
    return nullptr;
  }
  return graph;
}

void stop_branch_streams() { branch_pool().stop(); }

}  // namespace emu

EMU_API aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  EMU_ENTER();
  return emu::replay(__func__, model, stream);
}

// As CANN: waits for replays in flight for at most 10 s, then refuses.
EMU_API aclError aclmdlRIDestroy(aclmdlRI model) {
  EMU_ENTER();
  constexpr int kTimeoutMs = 10'000;
  aclError error = ACL_SUCCESS;
  auto graph = emu::find_ready_graph(model, __func__, &error);
  if (!graph) return error;
  if (!graph->wait_landed(kTimeoutMs, __func__)) {
    return emu::fail(ACL_ERROR_RT_MODEL_RUNNING,
                     "aclmdlRIDestroy: graph " + std::to_string(graph->id()) +
                         " is still replayed after " + std::to_string(kTimeoutMs) + " ms");
  }
  if (!emu::graphs().erase(model)) return emu::graphs().refuse(__func__, model);
  for (void* group : graph->group_handles) emu::task_groups().erase(group);
  graph->release_tickets();
  emu::count(emu::Counter::kGraphsDestroyed);
  return ACL_SUCCESS;
}
