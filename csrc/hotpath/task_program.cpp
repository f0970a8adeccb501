// SPDX-License-Identifier: Apache-2.0
#include "hotpath/task_program.h"

#include "hotpath/acl_call.h"

namespace hotpath {

TaskProgram::TaskProgram(const std::string& op, const std::string& overload,
                         const std::string& query_lengths, const std::string& kv_lengths)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str())),
      query_lengths_(argument_index(query_lengths)),
      kv_lengths_(argument_index(kv_lengths)) {}

size_t TaskProgram::argument_index(std::string_view name) const {
  const auto& arguments = op_.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return i;
  }
  TORCH_CHECK(false, op_.operator_name(), " has no argument ", name,
              ": this torch_npu is not the one that the hot path was written for");
}

void TaskProgram::add(const c10::Dict<std::string, c10::IValue>& arguments, aclrtTaskGrp group,
                      std::shared_ptr<const ExternalEvent> event) {
  const auto& formal = op_.schema().arguments();
  Task task;
  task.arguments.resize(formal.size());
  std::vector<bool> given(formal.size(), false);
  for (const auto& entry : arguments) {
    size_t index = argument_index(entry.key());
    task.arguments[index] = entry.value();
    given[index] = true;
  }
  given[query_lengths_] = given[kv_lengths_] = true;
  for (size_t i = 0; i < formal.size(); ++i) {
    if (given[i]) continue;
    TORCH_CHECK(formal[i].default_value().has_value(), op_.operator_name(), " needs an argument ",
                formal[i].name());
    task.arguments[i] = *formal[i].default_value();
  }
  task.group = group;
  task.event = std::move(event);
  tasks_.push_back(std::move(task));
}

void TaskProgram::update(const UpdateStream& stream, const std::vector<int64_t>& query_ends,
                         const std::vector<int64_t>& kv_lens, std::atomic<int64_t>& issued) const {
  const c10::IValue queries(query_ends);
  const c10::IValue keys(kv_lens);
  torch::jit::Stack stack;
  for (const Task& task : tasks_) {
    stack = task.arguments;
    stack[query_lengths_] = queries;
    stack[kv_lengths_] = keys;
    ACL_CALL(aclmdlRICaptureTaskUpdateBegin(stream.handle, task.group));
    try {
      op_.callBoxed(stack);
    } catch (...) {
      // Nothing more can go wrong than has; the stream must not stay in this update.
      static_cast<void>(aclmdlRICaptureTaskUpdateEnd(stream.handle));
      throw;
    }
    ACL_CALL(aclmdlRICaptureTaskUpdateEnd(stream.handle));
    task.event->record(stream.handle);
    issued.fetch_add(1, std::memory_order_release);
  }
}

void TaskProgram::let_go(const UpdateStream& stream, size_t first) const {
  for (size_t i = first; i < tasks_.size(); ++i) tasks_[i].event->record(stream.handle);
}

}  // namespace hotpath
