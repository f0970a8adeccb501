// SPDX-License-Identifier: Apache-2.0
#include "runtime/capture.h"

#include <unistd.h>

#include <array>

#include "runtime/counters.h"
#include "runtime/error.h"
#include "runtime/process.h"
#include "runtime/task_group.h"

namespace emu {
namespace {

constexpr size_t kModes = 3;

// Of a thread: the mode that it exchanged to, and the captures that it began.
thread_local aclmdlRICaptureMode exchanged_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
thread_local std::array<int, kModes> begun_here{};

// Captures under way, by device and mode; with the capture lock.
std::vector<std::array<int, kModes>>& captures_under_way() {
  static auto* counts = new std::vector<std::array<int, kModes>>(64);
  return *counts;
}

// Of all devices, to be quick where nothing is captured.
std::atomic<int> captures_total{0};

bool is_any_capturing() { return captures_total.load(std::memory_order_acquire) != 0; }

std::string stream_name(const Stream& stream) { return "stream " + std::to_string(stream.id()); }

bool is_capturing(const GraphUse& use) { return use.kind == GraphUse::Kind::kCapture; }

// The graph of an event's latest record, if that capture has not ended.
std::shared_ptr<Graph> capturing_graph(const CaptureMark& mark) {
  auto graph = mark.graph.lock();
  return graph && !graph->captured_streams.empty() ? graph : nullptr;
}

void invalidate(Graph& graph, const std::string& why) {
  if (graph.state != Graph::State::kCapturing) return;
  graph.state = Graph::State::kInvalidated;
  graph.why_invalid = why;
}

aclError fail_invalidated(const Graph& graph, const char* api) {
  return fail(
      ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED,
      std::string(api) + ": the capture was invalidated by an earlier error: " + graph.why_invalid);
}

bool is_default_stream(const Stream& stream) {
  return stream.device().default_stream().get() == &stream;
}

// Lets a stream take part in a capture as a new lane.
void join(const std::shared_ptr<Graph>& graph, const std::shared_ptr<Stream>& stream,
          Ticket ticket) {
  size_t lane = graph->lanes.size();
  // Delays of the adversarial scheduler depend on the graph and the lane, not on who replays.
  uint64_t schedule_key = (uint64_t{1} << 40) | (uint64_t{graph->id()} << 16) | lane;
  graph->lanes.push_back(std::make_unique<Lane>(graph->device().index(), schedule_key, stream->id(),
                                                std::move(ticket)));
  graph->captured_streams.push_back(stream);
  GraphUse& use = stream->graph_use;
  use.graph = graph;
  use.lane = lane;
  use.kind = GraphUse::Kind::kCapture;
}

void append(Graph& graph, size_t lane, std::shared_ptr<Node> node) {
  graph.lanes[lane]->nodes.push_back(std::move(node));
}

// The streams go back to normal, whatever became of the capture.
void release_streams(Graph& graph) {
  for (const auto& stream : graph.captured_streams) {
    GraphUse& use = stream->graph_use;
    use.kind = GraphUse::Kind::kNone;
    use.graph = nullptr;
    use.group = nullptr;
  }
  graph.captured_streams.clear();
  size_t mode = static_cast<size_t>(graph.mode());
  --captures_under_way()[static_cast<size_t>(graph.device().index())][mode];
  --captures_total;
  if (graph.capture_thread == gettid()) --begun_here[mode];
}

// Where every lane but the first must end: in a record that a lane waits for which itself is
// joined, and so on to the first. CANN asks for the last task of a forked stream to be that record.
bool is_joined(const Graph& graph, std::string* why) {
  constexpr ptrdiff_t kNowhere = -1;
  std::vector<std::pair<size_t, ptrdiff_t>> record_of(graph.edge_events.size(), {0, kNowhere});
  for (size_t lane = 0; lane < graph.lanes.size(); ++lane) {
    const auto& nodes = graph.lanes[lane]->nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i]->kind == Node::Kind::kEdgeRecord) {
        record_of[nodes[i]->edge] = {lane, static_cast<ptrdiff_t>(i)};
      }
    }
  }
  // joined[lane]: the last node that the end of the first lane comes after.
  std::vector<ptrdiff_t> joined(graph.lanes.size(), kNowhere);
  joined[0] = static_cast<ptrdiff_t>(graph.lanes[0]->nodes.size()) - 1;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t lane = 0; lane < graph.lanes.size(); ++lane) {
      for (ptrdiff_t i = 0; i <= joined[lane]; ++i) {
        const Node& node = *graph.lanes[lane]->nodes[static_cast<size_t>(i)];
        if (node.kind != Node::Kind::kEdgeWait) continue;
        auto [source, position] = record_of[node.edge];
        if (position > joined[source]) {
          joined[source] = position;
          changed = true;
        }
      }
    }
  }
  for (size_t lane = 1; lane < graph.lanes.size(); ++lane) {
    if (joined[lane] + 1 == static_cast<ptrdiff_t>(graph.lanes[lane]->nodes.size())) continue;
    *why = "stream " + std::to_string(graph.lanes[lane]->stream_id) +
           " was forked into the capture but not joined again: after its last "
           "task, record an "
           "event on it and let the capturing stream wait for that";
    return false;
  }
  return true;
}

aclError begin(const char* api, aclrtStream handle, aclmdlRICaptureMode mode) {
  if (static_cast<size_t>(mode) >= kModes) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                std::string(api) + ": unknown mode " + std::to_string(mode));
  }
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (is_default_stream(*stream)) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT,
                std::string(api) + ": the default stream cannot be captured, use another stream");
  }
  if (aclError error = check_usable(stream->device(), api)) return error;
  std::lock_guard lock(capture_lock());
  switch (stream->graph_use.kind) {
    case GraphUse::Kind::kCapture:
      return fail(ACL_ERROR_RT_STREAM_CAPTURED,
                  std::string(api) + ": " + stream_name(*stream) + " is being captured already");
    case GraphUse::Kind::kUpdate:
      return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS,
                  std::string(api) + ": a task update is open on " + stream_name(*stream));
    case GraphUse::Kind::kNone:
      break;
  }
  auto ticket = take(stream->device(), Resource::kStream);
  if (!ticket) {
    return fail_exhausted(ACL_ERROR_RT_NO_STREAM_RESOURCE, api, stream->device(),
                          Resource::kStream);
  }
  auto graph = std::make_shared<Graph>(stream->device(), mode);
  graph->capture_thread = gettid();
  stream->graph_use.handle = graphs().insert(graph);
  join(graph, stream, std::move(*ticket));
  ++captures_under_way()[static_cast<size_t>(stream->device().index())][static_cast<size_t>(mode)];
  ++captures_total;
  ++begun_here[static_cast<size_t>(mode)];
  return ACL_SUCCESS;
}

aclError end(const char* api, aclrtStream handle, aclmdlRI* model) {
  *model = nullptr;
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  std::shared_ptr<Graph> graph;
  void* graph_handle = nullptr;
  aclError error = ACL_SUCCESS;
  {
    std::lock_guard lock(capture_lock());
    GraphUse& use = stream->graph_use;
    if (!is_capturing(use)) {
      return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED,
                  std::string(api) + ": " + stream_name(*stream) + " is not being captured");
    }
    if (use.lane != 0) {
      return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED,
                  std::string(api) + ": the capture was begun on " +
                      stream_name(*use.graph->captured_streams[0]) + ", not on " +
                      stream_name(*stream));
    }
    graph = use.graph;
    if (graph->mode() != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && graph->capture_thread != gettid()) {
      return fail(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD,
                  std::string(api) +
                      ": a capture whose mode is not RELAXED must end on the thread "
                      "that began it");
    }
    std::string why;
    if (graph->state == Graph::State::kInvalidated) {
      error = fail_invalidated(*graph, api);
    } else if (graph->open_groups) {
      error = fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, std::string(api) + ": " +
                                                           std::to_string(graph->open_groups) +
                                                           " task group was begun and not ended "
                                                           "(aclmdlRICaptureTaskGrpEnd)");
    } else if (!is_joined(*graph, &why)) {
      error = fail(ACL_ERROR_RT_STREAM_UNJOINED, std::string(api) + ": " + why);
    }
    graph_handle = use.handle;
    release_streams(*graph);
    if (!error) {
      graph->seal();
      graph->state = Graph::State::kReady;
    }
  }
  if (error) {
    for (void* group : graph->group_handles) task_groups().erase(group);
    graphs().erase(graph_handle);
    return error;
  }
  count(Counter::kGraphCaptures);
  *model = graph_handle;
  return ACL_SUCCESS;
}

// Whether a task may be captured at all.
bool is_for_a_group(const Task& task) { return task.kind == TaskKind::kOperator; }

}  // namespace

std::mutex& capture_lock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::optional<aclError> take_for_graph(Stream& stream, Task& task) {
  GraphUse& use = stream.graph_use;
  if (use.kind == GraphUse::Kind::kNone) {
    if (!is_any_capturing() || !is_default_stream(stream)) return std::nullopt;
    // CANN: while a stream is captured, operations on the default stream are illegal.
    if (aclError error =
            refuse_if_unsafe(stream.device(), task.name, ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT)) {
      return error;
    }
    return std::nullopt;
  }
  std::lock_guard lock(capture_lock());
  if (use.kind == GraphUse::Kind::kUpdate) return add_to_update(stream, task);
  if (use.kind == GraphUse::Kind::kNone) return std::nullopt;
  Graph& graph = *use.graph;
  if (graph.state == Graph::State::kInvalidated) return fail_invalidated(graph, task.name);
  if (task.kind == TaskKind::kGraphReplay) {
    return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
                std::string(task.name) + ": a graph cannot be replayed on " + stream_name(stream) +
                    ", which is being captured");
  }
  if (use.group && !is_for_a_group(task)) {
    std::string why = std::string(task.name) +
                      " is inside a task group, where only operators may be "
                      "(tasks that run on "
                      "cube or vector cores)";
    invalidate(graph, why);
    return fail(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, why);
  }
  auto node = std::make_shared<Node>(std::move(task), use.group ? use.group->id : nullptr);
  if (use.group) use.group->nodes.push_back(node);
  append(graph, use.lane, std::move(node));
  count(Counter::kCapturedNodes);
  return ACL_SUCCESS;
}

std::optional<aclError> capture_record(Stream& stream, CaptureMark& mark) {
  if (!is_any_capturing()) return std::nullopt;
  std::lock_guard lock(capture_lock());
  GraphUse& use = stream.graph_use;
  if (!is_capturing(use)) {
    if (!capturing_graph(mark)) return std::nullopt;
    return fail(ACL_ERROR_RT_EVENT_CAPTURED,
                "aclrtRecordEvent: the event was recorded in a capture that "
                "has not ended, and " +
                    stream_name(stream) + " is not part of it");
  }
  Graph& graph = *use.graph;
  if (graph.state == Graph::State::kInvalidated) return fail_invalidated(graph, "aclrtRecordEvent");
  if (use.group) {
    std::string why = "an event record is inside a task group, where only operators may be";
    invalidate(graph, why);
    return fail(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, "aclrtRecordEvent: " + why);
  }
  auto ticket = take(graph.device(), Resource::kEvent);
  if (!ticket) {
    invalidate(graph, "no event was left for a record");
    return fail_exhausted(ACL_ERROR_RT_NO_EVENT_RESOURCE, "aclrtRecordEvent", graph.device(),
                          Resource::kEvent);
  }
  size_t edge = graph.edge_events.size();
  graph.edge_events.push_back(std::move(*ticket));
  append(graph, use.lane, std::make_shared<Node>(Node::Kind::kEdgeRecord, edge));
  mark = {use.graph, edge};
  count(Counter::kCapturedNodes);
  return ACL_SUCCESS;
}

std::optional<aclError> capture_wait(const std::shared_ptr<Stream>& stream, const CaptureMark& mark,
                                     bool recorded) {
  constexpr const char* kApi = "aclrtStreamWaitEvent";
  if (!is_any_capturing()) return std::nullopt;
  bool on_default_stream = is_default_stream(*stream);
  std::lock_guard lock(capture_lock());
  GraphUse& use = stream->graph_use;
  auto graph = capturing_graph(mark);
  if (!graph) {
    if (!is_capturing(use)) return std::nullopt;
    if (use.graph->state == Graph::State::kInvalidated) return fail_invalidated(*use.graph, kApi);
    if (!recorded) return ACL_SUCCESS;
    std::string why = stream_name(*stream) +
                      " is being captured and cannot wait for an event that "
                      "was recorded outside "
                      "of the capture: use an external event, or wait before "
                      "the capture begins";
    invalidate(*use.graph, why);
    return fail(ACL_ERROR_RT_CAPTURE_DEPENDENCY, std::string(kApi) + ": " + why);
  }
  if (on_default_stream) {
    std::string why = "the default stream cannot take part in a capture";
    invalidate(*graph, why);
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, std::string(kApi) + ": " + why);
  }
  if (graph->state == Graph::State::kInvalidated) return fail_invalidated(*graph, kApi);
  if (use.kind == GraphUse::Kind::kUpdate) {
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS,
                std::string(kApi) + ": a task update is open on " + stream_name(*stream));
  }
  if (is_capturing(use) && use.graph != graph) {
    std::string why = "the event belongs to another capture than " + stream_name(*stream);
    invalidate(*graph, why);
    invalidate(*use.graph, why);
    return fail(ACL_ERROR_STREAM_CAPTURE_CONFLICT, std::string(kApi) + ": " + why);
  }
  if (use.group) {
    std::string why = "an event wait is inside a task group, where only operators may be";
    invalidate(*graph, why);
    return fail(ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, std::string(kApi) + ": " + why);
  }
  if (!is_capturing(use)) {
    if (&stream->device() != &graph->device()) {
      std::string why = stream_name(*stream) + " belongs to another device than the capture";
      invalidate(*graph, why);
      return fail(ACL_ERROR_RT_STREAM_CONTEXT, std::string(kApi) + ": " + why);
    }
    auto ticket = take(graph->device(), Resource::kStream);
    if (!ticket) {
      invalidate(*graph, "no stream was left for " + stream_name(*stream) + " to be forked to");
      return fail_exhausted(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, kApi, graph->device(),
                            Resource::kStream);
    }
    join(graph, stream, std::move(*ticket));
  }
  append(*graph, use.lane, std::make_shared<Node>(Node::Kind::kEdgeWait, mark.edge));
  count(Counter::kCapturedNodes);
  return ACL_SUCCESS;
}

aclError refuse_if_captured(const CaptureMark& mark, const char* api) {
  if (!is_any_capturing()) return ACL_SUCCESS;
  std::lock_guard lock(capture_lock());
  if (!capturing_graph(mark)) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_EVENT_CAPTURED,
              std::string(api) +
                  ": the event was recorded in a capture that has not ended, so "
                  "that there is nothing to ask or to wait for");
}

aclError refuse_if_capturing(Stream& stream, const char* api) {
  if (stream.graph_use.kind != GraphUse::Kind::kCapture) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_STREAM_CAPTURED,
              std::string(api) + ": " + stream_name(stream) +
                  " is being captured, where nothing runs: call it before the "
                  "capture or after");
}

aclError refuse_if_any_capturing(const Device& device, const char* api) {
  if (!is_any_capturing()) return ACL_SUCCESS;
  std::lock_guard lock(capture_lock());
  for (int captures : captures_under_way()[static_cast<size_t>(device.index())]) {
    if (!captures) continue;
    return fail(ACL_ERROR_RT_STREAM_CAPTURED,
                std::string(api) + ": a stream of device " + std::to_string(device.index()) +
                    " is being captured: call it before the capture or after");
  }
  return ACL_SUCCESS;
}

// The rule of CANN's documentation of aclmdlRICaptureThreadExchangeMode.
aclError refuse_if_unsafe(const Device& device, const char* api, aclError code) {
  if (!is_any_capturing()) return ACL_SUCCESS;
  std::array<int, kModes> captures;
  {
    std::lock_guard lock(capture_lock());
    captures = captures_under_way()[static_cast<size_t>(device.index())];
  }
  bool began_global = begun_here[ACL_MODEL_RI_CAPTURE_MODE_GLOBAL] != 0;
  bool began_local = begun_here[ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL] != 0;
  bool is_refused = false;
  switch (exchanged_mode) {
    case ACL_MODEL_RI_CAPTURE_MODE_GLOBAL:
      is_refused = captures[ACL_MODEL_RI_CAPTURE_MODE_GLOBAL] || began_local;
      break;
    case ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL:
      is_refused = began_global || began_local;
      break;
    case ACL_MODEL_RI_CAPTURE_MODE_RELAXED:
      break;
  }
  if (!is_refused) return ACL_SUCCESS;
  const char* what = code == ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC
                         ? ": with pageable host memory this call waits for "
                           "the stream, which is "
                           "not permitted"
                         : ": not permitted";
  if (code == ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT) {
    what = ": work on the default stream is not permitted";
  }
  return fail(code, std::string(api) + what +
                        " while a stream of the device is being captured in a "
                        "mode that is not "
                        "RELAXED for this thread");
}

}  // namespace emu

EMU_API aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
  EMU_ENTER();
  return emu::begin(__func__, stream, mode);
}

EMU_API aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(model);
  return emu::end(__func__, stream, model);
}

EMU_API aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status,
                                        aclmdlRI* model) {
  EMU_ENTER();
  if (!status && !model) return emu::fail_null(__func__, "status");
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  aclmdlRICaptureStatus state = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  aclmdlRI current = nullptr;
  if (stream->graph_use.kind == emu::GraphUse::Kind::kCapture) {
    std::lock_guard lock(emu::capture_lock());
    const emu::GraphUse& use = stream->graph_use;
    if (emu::is_capturing(use)) {
      state = use.graph->state == emu::Graph::State::kCapturing
                  ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE
                  : ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED;
      current = use.graph->captured_streams[0]->graph_use.handle;
    }
  }
  if (status) *status = state;
  if (model) *model = current;
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(mode);
  if (static_cast<size_t>(*mode) >= emu::kModes) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID,
                     "aclmdlRICaptureThreadExchangeMode: unknown mode " + std::to_string(*mode));
  }
  std::swap(emu::exchanged_mode, *mode);
  return ACL_SUCCESS;
}
