// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include <pthread.h>

#include <chrono>
#include <cstdio>

#include "checker/stall.h"
#include "runtime/capture.h"
#include "runtime/counters.h"
#include "runtime/error.h"
#include "runtime/execute.h"
#include "runtime/graph.h"
#include "runtime/handles.h"
#include "runtime/process.h"

namespace emu {
namespace {

thread_local Stream* worker_stream = nullptr;

HandleTable<Stream>& streams() {
  static auto* table = new HandleTable<Stream>(HandleKind::kStream);
  return *table;
}

int32_t next_stream_id() {
  static std::atomic<int32_t> next{1};
  return next++;
}

void count_submission(const Task& task) {
  switch (task.kind) {
    case TaskKind::kOperator:
      count_launch(task.name);
      break;
    case TaskKind::kCollective:
      count_collective(task.name);
      break;
    case TaskKind::kEventRecord:
      count(Counter::kEventRecords);
      break;
    case TaskKind::kEventWait:
      count(Counter::kEventWaits);
      break;
    case TaskKind::kEventReset:
      count(Counter::kEventResets);
      break;
    case TaskKind::kCallback:
      count(Counter::kCallbacks);
      break;
    case TaskKind::kHostFunction:
      count(Counter::kHostFunctions);
      break;
    case TaskKind::kValueWrite:
      count(Counter::kValueWrites);
      break;
    case TaskKind::kValueWait:
      count(Counter::kValueWaits);
      break;
    case TaskKind::kMemset:
      count(Counter::kMemsets);
      break;
    case TaskKind::kGraphReplay:
      count(Counter::kGraphReplays);
      break;
    case TaskKind::kTaskUpdate:
      count(Counter::kTaskUpdates);
      break;
    case TaskKind::kCopy:  // counted by copy.cpp, which knows kinds, memory and bytes
    case TaskKind::kGraphBranch:
      break;
  }
}

}  // namespace

Stream::Stream(Device& device, uint64_t ordinal, Ticket ticket)
    : device_(device),
      ticket_(std::move(ticket)),
      id_(next_stream_id()),
      schedule_(device.index(), ordinal),
      worker_([this] { work(); }) {}

Stream::~Stream() { stop(Queued::kDrop); }

aclError Stream::push(Task task) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    return fail(ACL_ERROR_RT_INVALID_HANDLE, std::string(task.name) + ": the stream " +
                                                 std::to_string(id_) + " is being destroyed");
  }
  queue_.push_back(std::move(task));
  ++submitted_;
  lock.unlock();
  work_ready_.notify_one();
  return ACL_SUCCESS;
}

aclError Stream::wait(int timeout_ms, const char* counted_api) {
  const char* api = counted_api ? counted_api : "aclrtSynchronizeDevice";
  if (worker_stream == this) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": a task of stream " +
                                                std::to_string(id_) +
                                                " waits for its own stream, which would never end");
  }
  {
    std::unique_lock lock(mutex_);
    const uint64_t target = submitted_;
    auto reached = [&] { return completed_ >= target; };
    HostWait host_wait(counted_api);
    if (!reached()) {
      host_wait.blocked();
      lock.unlock();
      check::HostWaits checked(api);
      lock.lock();
      if (timeout_ms < 0) {
        progress_.wait(lock, reached);
      } else if (!progress_.wait_for(lock, std::chrono::milliseconds(timeout_ms), reached)) {
        return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                    std::string(api) + ": stream " + std::to_string(id_) + " of device " +
                        std::to_string(device_.index()) + " did not finish within " +
                        std::to_string(timeout_ms) + " ms; " +
                        std::to_string(submitted_ - completed_) + " tasks are left");
      }
    }
  }
  check::host_joins(agent);
  return check_usable(device_, api);
}

bool Stream::idle() const {
  std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

void Stream::finish(std::chrono::steady_clock::time_point until) {
  std::vector<std::function<void()>> dropped;  // destroyed without the lock
  {
    std::unique_lock lock(mutex_);
    for (Task& task : queue_) {
      if (task.kind != TaskKind::kCallback && task.kind != TaskKind::kHostFunction) continue;
      dropped.push_back(std::move(task.body));
      task.body = nullptr;
    }
    progress_.wait_until(lock, until, [&] { return completed_ == submitted_; });
  }
}

void Stream::drop_queued() {
  std::vector<std::function<void()>> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  for (Task& task : queue_) {
    if (task.kind == TaskKind::kEventRecord) continue;
    dropped.push_back(std::move(task.body));
    task.body = nullptr;
  }
  interrupt_through_ = submitted_;
}

bool Stream::stop(Queued queued, int timeout_ms) {
  if (queued == Queued::kDrop) drop_queued();
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    work_ready_.notify_one();
    auto ended = [&] { return ended_; };
    if (timeout_ms < 0) {
      progress_.wait(lock, ended);
    } else if (!progress_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ended)) {
      return false;
    }
  }
  if (worker_.joinable()) worker_.join();
  return true;
}

bool Stream::interrupted() const {
  return running_.load(std::memory_order_relaxed) <= interrupt_through_ || exiting();
}

void Stream::work() {
  worker_stream = this;
  adopt_device(&device_);
  check::become(agent, id_);
  char name[16];
  std::snprintf(name, sizeof name, "npu%d_s%d", device_.index(), id_);
  pthread_setname_np(pthread_self(), name);
  be_punctual();
  std::unique_lock lock(mutex_);
  for (;;) {
    work_ready_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) break;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    running_ = completed_ + 1;
    lock.unlock();
    run(task);
    task = {};  // what the body holds goes before anybody learns that it ran
    lock.lock();
    ++completed_;
    progress_.notify_all();
  }
  ended_ = true;
  progress_.notify_all();
}

void Stream::run(Task& task) {
  if (!task.body) return;
  schedule_.before_task();
  try {
    execute(device_, task);
  } catch (const TaskInterrupted&) {
  }
}

void check_interrupted() {
  // Nobody will end the wait of a task on a device that has failed.
  if (worker_stream && worker_stream->device().failed()) throw TaskInterrupted();
  if (worker_stream ? worker_stream->interrupted() : exiting()) throw TaskInterrupted();
}

int32_t worker_stream_id() { return worker_stream ? worker_stream->id() : -1; }

std::shared_ptr<Stream> find_stream(aclrtStream handle, const char* api) {
  if (!handle) {
    Device* device = current_device(api);
    return device ? device->default_stream() : nullptr;
  }
  auto stream = streams().find(handle);
  if (!stream) streams().refuse(api, handle);
  return stream;
}

aclError check_usable(const Device& device, const char* api) {
  if (const std::string* why = poisoned()) {
    return fail(ACL_ERROR_INTERNAL_ERROR, std::string(api) + ": " + *why);
  }
  return device.failed() ? device.report_failure(api) : ACL_SUCCESS;
}

aclError submit_to(Stream& stream, Task task) {
  if (aclError error = check_usable(stream.device(), task.name)) return error;
  check::submitting(stream, task, stream.graph_use.kind == GraphUse::Kind::kCapture);
  if (auto taken = take_for_graph(stream, task)) return *taken;
  count_submission(task);
  return stream.push(std::move(task));
}

aclError submit(aclrtStream handle, Task task) {
  if (forked_child()) return fail_forked(task.name);
  auto stream = find_stream(handle, task.name);
  return stream ? submit_to(*stream, std::move(task)) : ACL_ERROR_RT_INVALID_HANDLE;
}

int device_of(aclrtStream handle) {
  auto stream = find_stream(handle, "device_of");
  return stream ? stream->device().index() : -1;
}

namespace {

std::vector<std::shared_ptr<Stream>> all_streams() {
  std::vector<std::shared_ptr<Stream>> all;
  for (int index = 0; index < device_count(); ++index) {
    for (auto& stream : find_device(index, "exit")->streams()) all.push_back(stream);
  }
  return all;
}

}  // namespace

void finish_all_streams() {
  // Longer only where a task waits for what will not come.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (auto& stream : all_streams()) {
    if (stream.get() != worker_stream) stream->finish(until);
  }
}

bool stop_all_streams() {
  // A task that computes at exit is let finish; longer than this, and the process leaves.
  constexpr int kTimeoutMs = 10'000;
  auto all = all_streams();
  for (auto& stream : all) stream->drop_queued();
  bool ended = true;
  for (auto& stream : all) {
    if (stream.get() == worker_stream) {
      ended = false;  // exit() was called from a task
      continue;
    }
    ended &= stream->stop(Stream::Queued::kDrop, kTimeoutMs);
  }
  if (ended) stop_branch_streams();
  return ended;
}

}  // namespace emu

using emu::Device;

EMU_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(stream);
  Device* device = emu::current_device(__func__);
  if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
  auto created = device->new_stream();
  if (!created) {
    return emu::fail_exhausted(ACL_ERROR_RT_NO_STREAM_RESOURCE, __func__, *device,
                               emu::Resource::kStream);
  }
  emu::count(emu::Counter::kStreamsCreated);
  *stream = emu::streams().insert(std::move(created));
  return ACL_SUCCESS;
}

EMU_API aclError aclrtCreateStream(aclrtStream* stream) {
  return aclrtCreateStreamWithConfig(stream, 0, 0);
}

namespace {

aclError destroy_stream(const char* api, aclrtStream handle, emu::Stream::Queued queued) {
  auto stream = emu::streams().find(handle);
  if (!stream) return emu::streams().refuse(api, handle);
  if (stream.get() == emu::worker_stream) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID,
                     std::string(api) + ": called from a task of the stream itself");
  }
  if (aclError error = emu::refuse_if_capturing(*stream, api)) return error;
  if (!emu::streams().erase(handle)) return emu::streams().refuse(api, handle);
  stream->device().forget_stream(stream.get());
  stream->stop(queued);
  emu::count(emu::Counter::kStreamsDestroyed);
  return ACL_SUCCESS;
}

}  // namespace

EMU_API aclError aclrtDestroyStream(aclrtStream stream) {
  EMU_ENTER();
  return destroy_stream(__func__, stream, emu::Stream::Queued::kRun);
}

EMU_API aclError aclrtDestroyStreamForce(aclrtStream stream) {
  EMU_ENTER();
  return destroy_stream(__func__, stream, emu::Stream::Queued::kDrop);
}

EMU_API aclError aclrtStreamAbort(aclrtStream handle) {
  EMU_ENTER();
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (aclError error = emu::refuse_if_capturing(*stream, __func__)) return error;
  stream->drop_queued();
  return ACL_SUCCESS;
}

namespace {

aclError synchronize_stream(const char* api, aclrtStream handle, int timeout_ms) {
  auto stream = emu::find_stream(handle, api);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (aclError error = emu::refuse_if_capturing(*stream, api)) return error;
  return stream->wait(timeout_ms, api);
}

}  // namespace

EMU_API aclError aclrtSynchronizeStream(aclrtStream handle) {
  EMU_ENTER();
  return synchronize_stream(__func__, handle, -1);
}

EMU_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout_ms) {
  EMU_ENTER();
  return synchronize_stream(__func__, handle, timeout_ms);
}

namespace {

aclError synchronize_device(int timeout_ms, const char* api) {
  Device* device = emu::current_device(api);
  if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
  if (aclError error = emu::refuse_if_any_capturing(*device, api)) return error;
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  emu::HostWait host_wait(api);
  for (const auto& stream : device->streams()) {
    if (stream->idle()) {
      emu::check::host_joins(stream->agent);
      continue;
    }
    host_wait.blocked();
    int left_ms = -1;
    if (timeout_ms >= 0) {
      auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      left_ms = std::max<int>(0, static_cast<int>(left.count()));
    }
    if (aclError error = stream->wait(left_ms, nullptr)) {
      if (error == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT) return error;
      break;  // reported below, with the right name
    }
  }
  return emu::check_usable(*device, api);
}

}  // namespace

EMU_API aclError aclrtSynchronizeDevice(void) {
  EMU_ENTER();
  return synchronize_device(-1, __func__);
}

EMU_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
  EMU_ENTER();
  return synchronize_device(timeout_ms, __func__);
}

EMU_API aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(status);
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (aclError error = emu::refuse_if_capturing(*stream, __func__)) return error;
  emu::count(emu::Counter::kStreamQueries);
  *status = stream->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  if (*status == ACL_STREAM_STATUS_COMPLETE) emu::check::host_joins(stream->agent);
  return emu::check_usable(stream->device(), __func__);
}

EMU_API aclError aclrtStreamGetId(aclrtStream handle, int32_t* stream_id) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(stream_id);
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  *stream_id = stream->id();
  return ACL_SUCCESS;
}

// Stream options without an effect here: every stream stops at a failure, and arithmetic follows
// IEEE 754 (ACL_CANN_ATTR_INF_NAN).
EMU_API aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t) {
  EMU_ENTER();
  return emu::find_stream(handle, __func__) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_HANDLE;
}

EMU_API aclError aclrtSetStreamAttribute(aclrtStream handle, aclrtStreamAttr,
                                         aclrtStreamAttrValue* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  return emu::find_stream(handle, __func__) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_HANDLE;
}

EMU_API aclError aclrtSetStreamOverflowSwitch(aclrtStream handle, uint32_t) {
  EMU_ENTER();
  return emu::find_stream(handle, __func__) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_HANDLE;
}

EMU_API aclError aclrtGetStreamOverflowSwitch(aclrtStream handle, uint32_t* flag) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(flag);
  *flag = 0;
  return emu::find_stream(handle, __func__) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_HANDLE;
}
