// SPDX-License-Identifier: Apache-2.0
// Events. An ordinary event stands for its latest record at the moment of the call, as the host
// sees it: waiting or synchronising takes hold of that record, and recording again does not
// disturb it. An external event (ACL_EVENT_EXTERNAL) is a flag on the device instead: records set
// it, waits wait for it, resets clear it, all when the stream gets there.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "checker/order.h"
#include "checker/stall.h"
#include "runtime/budget.h"
#include "runtime/capture.h"
#include "runtime/counters.h"
#include "runtime/error.h"
#include "runtime/handles.h"
#include "runtime/process.h"
#include "runtime/stream.h"
#include "runtime/trace.h"

namespace emu {
namespace {

// One record: done once, never undone.
class Completion {
 public:
  explicit Completion(Device* device) : device_(device) {}

  void complete() {
    order_.release();
    std::lock_guard lock(mutex_);
    recorded_ns_ = trace_now_ns();
    done_ = true;
    changed_.notify_all();
  }

  bool done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }

  // The caller has seen that it is done.
  void seen() const { order_.acquire(); }

  // For a host thread. False after `timeout_ms`; negative waits for ever.
  bool wait_on_host(const char* api, int timeout_ms, HostWait& host_wait) {
    auto is_done = [&] { return done_; };
    if (!done()) {
      host_wait.blocked();
      check::HostWaits checked(api);
      std::unique_lock lock(mutex_);
      if (timeout_ms < 0) {
        changed_.wait(lock, is_done);
      } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_done)) {
        return false;
      }
    }
    seen();
    return true;
  }

  // For a task. Throws TaskInterrupted.
  void wait_in_task() {
    {
      std::unique_lock lock(mutex_);
      std::optional<check::Blocked> blocked;
      while (!done_) {
        if (!blocked) {
          blocked.emplace(device_ ? "an event" : "an external event that nobody has recorded");
        }
        check_interrupted();
        changed_.wait_for(lock, std::chrono::milliseconds(kInterruptPollMs));
      }
    }
    seen();
  }

  int64_t recorded_ns() const {
    std::lock_guard lock(mutex_);
    return recorded_ns_;
  }

  // The device whose failure concerns whoever waits; null for external events.
  Device* device() const { return device_; }

 private:
  Device* const device_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int64_t recorded_ns_ = 0;
  check::SyncPoint order_;
};

using CompletionPtr = std::shared_ptr<Completion>;

class Event {
 public:
  explicit Event(uint32_t flags) : flags_(flags) {
    if (external()) current_ = std::make_shared<Completion>(nullptr);
  }
  ~Event() {
    if (external()) check::flag_is_gone(this);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool external() const { return flags_ & ACL_EVENT_EXTERNAL; }
  bool timed() const { return flags_ & ACL_EVENT_TIME_LINE; }

  // The latest record; null if there was none. Of an external event: the flag as it is now.
  CompletionPtr current() const {
    std::lock_guard lock(mutex_);
    return current_;
  }

  // False if the device has no event left. External events take theirs when they are created,
  // ordinary ones when they are recorded first.
  bool take_ticket(const Device& device) {
    std::lock_guard lock(mutex_);
    if (ticket_.held()) return true;
    auto ticket = take(device, Resource::kEvent);
    if (ticket) ticket_ = std::move(*ticket);
    return ticket.has_value();
  }

  // Ordinary: the record that a call to aclrtRecordEvent makes.
  CompletionPtr begin_record(Device& device) {
    std::lock_guard lock(mutex_);
    // After a reset, those who wait already wait for this very record.
    if (!awaiting_record_) current_ = std::make_shared<Completion>(&device);
    awaiting_record_ = false;
    return current_;
  }

  // Ordinary: from now on the event counts as not recorded.
  void reset(Device& device) {
    std::lock_guard lock(mutex_);
    current_ = std::make_shared<Completion>(&device);
    awaiting_record_ = true;
  }

  // External, on the device.
  void set_flag() {
    auto now = current();
    check::flag_changes(this, now->done(), 1);
    now->complete();
  }
  void clear_flag() {
    check::flag_changes(this, current()->done(), 0);
    std::lock_guard lock(mutex_);
    if (current_->done()) current_ = std::make_shared<Completion>(nullptr);
  }

  std::atomic<int> waits_pending{0};
  CaptureMark capture_mark;  // guarded by the capture lock

 private:
  const uint32_t flags_;
  mutable std::mutex mutex_;
  CompletionPtr current_;
  Ticket ticket_;
  bool awaiting_record_ = false;
};

using EventPtr = std::shared_ptr<Event>;

HandleTable<Event>& events() {
  static auto* table = new HandleTable<Event>(HandleKind::kEvent);
  return *table;
}

// Counts a wait as pending until its task is gone, run or dropped.
class PendingWait {
 public:
  explicit PendingWait(EventPtr event) : event_(std::move(event)) { ++event_->waits_pending; }
  ~PendingWait() { --event_->waits_pending; }
  PendingWait(const PendingWait&) = delete;
  PendingWait& operator=(const PendingWait&) = delete;

 private:
  EventPtr event_;
};

aclError create(const char* api, aclrtEvent* event, uint32_t flags) {
  if (!event) return fail_null(api, "event");
  if (flags & ACL_EVENT_IPC) return fail_unsupported(api, "events shared between processes");
  auto created = std::make_shared<Event>(flags);
  if (created->external()) {
    Device* device = current_device(api);
    if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
    if (!created->take_ticket(*device)) {
      return fail_exhausted(ACL_ERROR_RT_NO_EVENT_RESOURCE, api, *device, Resource::kEvent);
    }
  }
  count(Counter::kEventsCreated);
  *event = events().insert(std::move(created));
  return ACL_SUCCESS;
}

// An external event is on the device only, and one that was captured has not happened.
aclError refuse_on_host(const Event& event, const char* api) {
  if (event.external()) {
    return fail_unsupported(api, "the host can neither wait for an external event nor query it");
  }
  return refuse_if_captured(event.capture_mark, api);
}

aclError synchronize(const char* api, aclrtEvent handle, int timeout_ms) {
  EventPtr event = events().find(handle);
  if (!event) return events().refuse(api, handle);
  if (aclError error = refuse_on_host(*event, api)) return error;
  CompletionPtr completion = event->current();
  HostWait host_wait(api);
  if (!completion) return ACL_SUCCESS;
  if (!completion->wait_on_host(api, timeout_ms, host_wait)) {
    return fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, std::string(api) +
                                                     ": the event did not complete within " +
                                                     std::to_string(timeout_ms) + " ms");
  }
  if (completion->device()) return check_usable(*completion->device(), api);
  return ACL_SUCCESS;
}

// The time of a completed record, or an error.
aclError recorded_ns(const char* api, aclrtEvent handle, int64_t* ns) {
  EventPtr event = events().find(handle);
  if (!event) return events().refuse(api, handle);
  if (aclError error = refuse_if_captured(event->capture_mark, api)) return error;
  if (!event->timed()) {
    return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                std::string(api) + ": the event was created without ACL_EVENT_TIME_LINE");
  }
  CompletionPtr completion = event->current();
  if (!completion || !completion->done()) {
    return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                std::string(api) + ": the event is not recorded or its record has not run yet");
  }
  *ns = completion->recorded_ns();
  return ACL_SUCCESS;
}

aclError query(const char* api, aclrtEvent handle, bool* complete) {
  EventPtr event = events().find(handle);
  if (!event) return events().refuse(api, handle);
  *complete = false;
  if (aclError error = refuse_on_host(*event, api)) return error;
  count(Counter::kEventQueries);
  CompletionPtr completion = event->current();
  *complete = !completion || completion->done();
  if (*complete && completion) completion->seen();
  if (*complete && completion && completion->device()) {
    return check_usable(*completion->device(), api);
  }
  return ACL_SUCCESS;
}

aclError submit_external(Stream& stream, Counter counter, Task task) {
  if (stream.graph_use.kind == GraphUse::Kind::kNone) count(counter);
  return submit_to(stream, std::move(task));
}

}  // namespace
}  // namespace emu

using emu::Event;
using emu::events;
using emu::TaskKind;

EMU_API aclError aclrtCreateEvent(aclrtEvent* event) {
  EMU_ENTER();
  return emu::create(__func__, event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE);
}

EMU_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flags) {
  EMU_ENTER();
  return emu::create(__func__, event, flags);
}

EMU_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flags) {
  EMU_ENTER();
  return emu::create(__func__, event, flags);
}

EMU_API aclError aclrtDestroyEvent(aclrtEvent event) {
  EMU_ENTER();
  if (!events().erase(event)) return events().refuse(__func__, event);
  emu::count(emu::Counter::kEventsDestroyed);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  EMU_ENTER();
  auto event = events().find(handle);
  if (!event) return events().refuse(__func__, handle);
  auto stream = emu::find_stream(stream_handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (event->external()) {
    return emu::submit_external(
        *stream, emu::Counter::kExternalRecords,
        {"event_record", TaskKind::kEventRecord, [event] { event->set_flag(); }, {}});
  }
  if (aclError error = emu::check_usable(stream->device(), __func__)) return error;
  if (auto captured = emu::capture_record(*stream, event->capture_mark)) return *captured;
  if (!event->take_ticket(stream->device())) {
    return emu::fail_exhausted(ACL_ERROR_RT_NO_EVENT_RESOURCE, __func__, stream->device(),
                               emu::Resource::kEvent);
  }
  auto completion = event->begin_record(stream->device());
  aclError error = emu::submit_to(
      *stream,
      {"event_record", TaskKind::kEventRecord, [completion] { completion->complete(); }, {}});
  if (error) completion->complete();  // nobody else will, and others may wait for it
  return error;
}

EMU_API aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  EMU_ENTER();
  auto event = events().find(handle);
  if (!event) return events().refuse(__func__, handle);
  auto stream = emu::find_stream(stream_handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (event->external()) {
    // No PendingWait: inside a graph the task lives on.
    return emu::submit_external(
        *stream, emu::Counter::kExternalWaits,
        {"event_wait", TaskKind::kEventWait, [event] { event->current()->wait_in_task(); }, {}});
  }
  auto completion = event->current();
  if (aclError error = emu::check_usable(stream->device(), __func__)) return error;
  if (auto captured = emu::capture_wait(stream, event->capture_mark, completion != nullptr)) {
    return *captured;
  }
  if (!completion) return ACL_SUCCESS;  // never recorded: nothing to wait for
  auto pending = std::make_shared<emu::PendingWait>(event);
  return emu::submit_to(*stream, {"event_wait",
                                  TaskKind::kEventWait,
                                  [completion, pending] { completion->wait_in_task(); },
                                  {}});
}

EMU_API aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream_handle) {
  EMU_ENTER();
  auto event = events().find(handle);
  if (!event) return events().refuse(__func__, handle);
  auto stream = emu::find_stream(stream_handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (event->external()) {
    return emu::submit_external(
        *stream, emu::Counter::kExternalResets,
        {"event_reset", TaskKind::kEventReset, [event] { event->clear_flag(); }, {}});
  }
  if (aclError error = emu::check_usable(stream->device(), __func__)) return error;
  if (aclError error = emu::refuse_if_capturing(*stream, __func__)) return error;
  event->reset(stream->device());
  return emu::submit_to(*stream, {"event_reset", TaskKind::kEventReset, [] {}, {}});
}

EMU_API aclError aclrtSynchronizeEvent(aclrtEvent event) {
  EMU_ENTER();
  return emu::synchronize(__func__, event, -1);
}

EMU_API aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout_ms) {
  EMU_ENTER();
  return emu::synchronize(__func__, event, timeout_ms);
}

EMU_API aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(status);
  bool complete = false;
  aclError error = emu::query(__func__, event, &complete);
  *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return error;
}

EMU_API aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(status);
  bool complete = false;
  aclError error = emu::query(__func__, event, &complete);
  *status = complete ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  return error;
}

EMU_API aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus* status) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(status);
  auto event = events().find(handle);
  if (!event) return events().refuse(__func__, handle);
  emu::count(emu::Counter::kEventQueries);
  *status = event->waits_pending ? ACL_EVENT_WAIT_STATUS_NOT_READY : ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(ms);
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  if (aclError error = emu::recorded_ns(__func__, start, &start_ns)) return error;
  if (aclError error = emu::recorded_ns(__func__, end, &end_ns)) return error;
  if (end_ns < start_ns) {
    return emu::fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
                     "aclrtEventElapsedTime: the end event was recorded before the start event");
  }
  *ms = static_cast<float>(static_cast<double>(end_ns - start_ns) / 1e6);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp_us) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(timestamp_us);
  int64_t ns = 0;
  if (aclError error = emu::recorded_ns(__func__, event, &ns)) return error;
  *timestamp_us = static_cast<uint64_t>(ns) / 1000;
  return ACL_SUCCESS;
}

// Limits of the hardware's watchdog over tasks; no task is timed here.
EMU_API aclError aclrtSetOpWaitTimeout(uint32_t) {
  EMU_ENTER();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSetOpExecuteTimeOut(uint32_t) {
  EMU_ENTER();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout_us, uint64_t* actual_timeout_us) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(actual_timeout_us);
  *actual_timeout_us = timeout_us;
  return ACL_SUCCESS;
}
