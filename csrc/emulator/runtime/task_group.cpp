// SPDX-License-Identifier: Apache-2.0
#include "runtime/task_group.h"

#include <algorithm>
#include <cstring>

#include "checker/order.h"
#include "runtime/capture.h"
#include "runtime/counters.h"
#include "runtime/error.h"
#include "runtime/process.h"

namespace emu {
namespace {

std::string stream_name(const Stream& stream) { return "stream " + std::to_string(stream.id()); }

aclError fail_state(const char* api, const std::string& why) {
  return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, std::string(api) + ": " + why);
}

aclError begin_group(const char* api, aclrtStream handle) {
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  std::lock_guard lock(capture_lock());
  GraphUse& use = stream->graph_use;
  if (use.kind == GraphUse::Kind::kUpdate) return fail_state(api, "a task update is open");
  if (use.kind != GraphUse::Kind::kCapture) {
    return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED,
                std::string(api) + ": " + stream_name(*stream) + " is not being captured");
  }
  if (use.group) {
    return fail_state(api, "a task group is open already on " + stream_name(*stream));
  }
  use.group = std::make_shared<TaskGroup>();
  ++use.graph->open_groups;
  return ACL_SUCCESS;
}

aclError end_group(const char* api, aclrtStream handle, aclrtTaskGrp* group) {
  *group = nullptr;
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  std::lock_guard lock(capture_lock());
  GraphUse& use = stream->graph_use;
  if (use.kind != GraphUse::Kind::kCapture || !use.group) {
    return fail_state(api, "no task group was begun on " + stream_name(*stream));
  }
  auto ended = std::move(use.group);
  use.group = nullptr;
  --use.graph->open_groups;
  if (use.graph->state == Graph::State::kInvalidated) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED,
                std::string(api) +
                    ": the capture was invalidated by an earlier error: " + use.graph->why_invalid);
  }
  ended->graph = use.graph;
  *group = task_groups().insert(std::move(ended));
  use.graph->group_handles.push_back(*group);
  return ACL_SUCCESS;
}

aclError begin_update(const char* api, aclrtStream handle, aclrtTaskGrp group_handle) {
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  auto group = task_groups().find(group_handle);
  if (!group) return task_groups().refuse(api, group_handle);
  std::lock_guard lock(capture_lock());
  GraphUse& use = stream->graph_use;
  if (use.kind == GraphUse::Kind::kCapture) {
    return fail(ACL_ERROR_RT_STREAM_CAPTURED, std::string(api) + ": " + stream_name(*stream) +
                                                  " is being captured, use another stream");
  }
  if (use.kind == GraphUse::Kind::kUpdate) {
    return fail_state(api, "a task update is open already on " + stream_name(*stream));
  }
  if (group->updating) {
    return fail_state(api, "an update of this task group is open on another stream");
  }
  auto graph = group->graph.lock();
  if (!graph || graph->state != Graph::State::kReady) {
    return fail(ACL_ERROR_RT_MODEL_CAPTURED,
                std::string(api) + ": the capture of the group's graph has not ended");
  }
  if (&graph->device() != &stream->device()) {
    return fail(ACL_ERROR_RT_STREAM_CONTEXT,
                std::string(api) + ": the graph belongs to another device than the stream");
  }
  group->updating = true;
  use.group = std::move(group);
  use.update_tasks.clear();
  use.update_error.clear();
  use.kind = GraphUse::Kind::kUpdate;
  return ACL_SUCCESS;
}

aclError end_update(const char* api, aclrtStream handle) {
  auto stream = find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  std::shared_ptr<TaskGroup> group;
  std::vector<std::shared_ptr<const Task>> tasks;
  {
    std::lock_guard lock(capture_lock());
    GraphUse& use = stream->graph_use;
    if (use.kind != GraphUse::Kind::kUpdate) {
      return fail_state(api, "no task update is open on " + stream_name(*stream));
    }
    group = std::move(use.group);
    use.group = nullptr;
    tasks = std::move(use.update_tasks);
    use.update_tasks.clear();
    use.kind = GraphUse::Kind::kNone;
    group->updating = false;
    if (!use.update_error.empty()) {
      return fail(ACL_ERROR_RT_INTERNAL_ERROR,
                  std::string(api) + ": nothing was updated: " + use.update_error);
    }
  }
  if (tasks.size() != group->nodes.size()) {
    return fail(ACL_ERROR_RT_INTERNAL_ERROR,
                std::string(api) + ": nothing was updated: the task group has " +
                    std::to_string(group->nodes.size()) + " tasks and the update " +
                    std::to_string(tasks.size()));
  }
  return submit_to(*stream, {"task_update",
                             TaskKind::kTaskUpdate,
                             [group, tasks = std::move(tasks)] {
                               check::group_updated(group->id.get());
                               for (size_t i = 0; i < tasks.size(); ++i) {
                                 group->nodes[i]->replace(tasks[i]);
                               }
                               if (auto graph = group->graph.lock()) ++graph->updates;
                             },
                             {}});
}

}  // namespace

aclError add_to_update(Stream& stream, Task& task) {
  GraphUse& use = stream.graph_use;
  const auto& nodes = use.group->nodes;
  size_t position = use.update_tasks.size();
  std::string why;
  if (task.kind != TaskKind::kOperator) {
    why = std::string(task.name) + " was submitted to " + stream_name(stream) +
          " while a task update is open there, where only the group's "
          "operators may be";
  } else if (position >= nodes.size()) {
    why = std::string(task.name) + " is one task more than the " + std::to_string(nodes.size()) +
          " of the task group";
  } else if (auto captured = nodes[position]->task(); std::strcmp(captured->name, task.name) != 0) {
    why = "task " + std::to_string(position) + " of the group is " + captured->name +
          " and cannot become " + task.name;
  }
  if (why.empty()) {
    use.update_tasks.push_back(std::make_shared<const Task>(std::move(task)));
    return ACL_SUCCESS;
  }
  if (use.update_error.empty()) use.update_error = why;
  return fail(ACL_ERROR_RT_INTERNAL_ERROR, "aclmdlRICaptureTaskUpdate: " + why);
}

}  // namespace emu

EMU_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
  EMU_ENTER();
  return emu::begin_group(__func__, stream);
}

EMU_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp* group) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(group);
  return emu::end_group(__func__, stream, group);
}

EMU_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp group) {
  EMU_ENTER();
  return emu::begin_update(__func__, stream, group);
}

EMU_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
  EMU_ENTER();
  return emu::end_update(__func__, stream);
}
