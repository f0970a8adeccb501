// SPDX-License-Identifier: Apache-2.0
// The attention tasks of one captured graph, prepared so that an update needs nothing from Python:
// the operator's arguments (tensors held), the task groups and the external events, in capture
// order. Which thread issues an update, and in what order with replays, is not decided here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <acl/acl_rt.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hotpath/external_event.h"

namespace hotpath {

// A stream as torch knows it (to make it current) and as the runtime does. Its launches must not
// go through torch_npu's task queue: group and event are handed to the runtime directly, and a
// queued operator would come after them.
struct UpdateStream {
  c10::Stream torch_stream;
  aclrtStream handle;
};

// One operator (by schema, found once), called with the same arguments but for two length lists.
class TaskProgram {
 public:
  // `lengths` names the schema's arguments that every update gives, in this order: the cumulative
  // query lengths and the KV lengths. Throws c10::Error where the operator or an argument is not
  // there.
  TaskProgram(const std::string& op, const std::string& overload, const std::string& query_lengths,
              const std::string& kv_lengths);

  // Append a captured task. `arguments` by name; what is not named takes the schema's default.
  // The group lives as long as its graph, which the caller keeps.
  void add(const c10::Dict<std::string, c10::IValue>& arguments, aclrtTaskGrp group,
           std::shared_ptr<const ExternalEvent> event);

  size_t size() const { return tasks_.size(); }

  // Update every task with these lengths and record its event, in capture order; `issued` counts
  // finished ones as they are. The stream is made current and the mode set by the caller.
  // Throws on the first error: neither that task nor those after it run then, until `let_go`.
  void update(const UpdateStream& stream, const std::vector<int64_t>& query_ends,
              const std::vector<int64_t>& kv_lens, std::atomic<int64_t>& issued) const;

  // Record the events from task `first` on without an update. The replay comes to its end with
  // earlier lengths, so that the device is there for an orderly exit; its result must not be used.
  void let_go(const UpdateStream& stream, size_t first) const;

 private:
  struct Task {
    torch::jit::Stack arguments;
    aclrtTaskGrp group;
    std::shared_ptr<const ExternalEvent> event;
  };

  size_t argument_index(std::string_view name) const;

  c10::OperatorHandle op_;
  size_t query_lengths_;
  size_t kv_lengths_;
  std::vector<Task> tasks_;
};

}  // namespace hotpath
