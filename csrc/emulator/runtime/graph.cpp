// SPDX-License-Identifier: Apache-2.0
#include "runtime/graph.h"

#include <chrono>

#include "runtime/counters.h"
#include "runtime/error.h"

namespace emu {
namespace {

uint32_t next_graph_id() {
  static std::atomic<uint32_t> next{1};
  return next++;
}

}  // namespace

Graph::Graph(Device& device, aclmdlRICaptureMode mode)
    : device_(device), id_(next_graph_id()), mode_(mode) {}

void Graph::seal() {
  edge_count_ = edge_events.size();
  std::map<std::string_view, std::pair<const char*, uint64_t>> by_name;
  for (const auto& lane : lanes) {
    node_count_ += lane->nodes.size();
    for (const auto& node : lane->nodes) {
      if (node->kind != Node::Kind::kTask) continue;
      const char* name = node->task()->name;
      ++by_name.try_emplace(name, name, 0).first->second.second;
    }
  }
  for (const auto& [text, entry] : by_name) nodes_by_name_.push_back(entry);
}

void Graph::release_tickets() {
  edge_events.clear();
  for (const auto& lane : lanes) lane->ticket = Ticket();
}

void Graph::leave_flight() {
  std::lock_guard lock(mutex_);
  --in_flight_;
  changed_.notify_all();
}

bool Graph::wait_landed(int timeout_ms, const char* api) {
  std::unique_lock lock(mutex_);
  auto landed = [&] { return in_flight_ == 0; };
  if (landed()) return true;
  HostWait host_wait(api);
  host_wait.blocked();
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), landed);
}

void Graph::take_turn() {
  std::unique_lock lock(mutex_);
  while (running_) {
    check_interrupted();
    changed_.wait_for(lock, std::chrono::milliseconds(kInterruptPollMs));
  }
  running_ = true;
}

void Graph::end_turn() {
  std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

HandleTable<Graph>& graphs() {
  static auto* table = new HandleTable<Graph>(HandleKind::kGraph);
  return *table;
}

HandleTable<TaskGroup>& task_groups() {
  static auto* table = new HandleTable<TaskGroup>(HandleKind::kTaskGroup);
  return *table;
}

std::string graphs_json() {
  std::string out = "[";
  for (const auto& graph : graphs().all()) {
    if (graph->state != Graph::State::kReady) continue;
    if (out.size() > 1) out += ',';
    out += "{\"id\":" + std::to_string(graph->id()) +
           ",\"device\":" + std::to_string(graph->device().index()) +
           ",\"nodes\":" + std::to_string(graph->node_count()) +
           ",\"streams\":" + std::to_string(graph->lanes.size()) +
           ",\"events\":" + std::to_string(graph->edge_count()) +
           ",\"task_groups\":" + std::to_string(graph->group_handles.size()) +
           ",\"replays\":" + std::to_string(graph->replays) +
           ",\"updates\":" + std::to_string(graph->updates) + '}';
  }
  return out + ']';
}

}  // namespace emu
