// SPDX-License-Identifier: Apache-2.0
// Host code that runs in stream order: host functions on the stream's worker, and callbacks on
// the thread that subscribed to the stream and calls aclrtProcessReport.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "checker/order.h"
#include "runtime/error.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace emu {
namespace {

// Handed from a stream's worker to a report thread; the worker waits for `done` if it blocks.
struct Report {
  aclrtCallback function;
  void* user_data;
  check::SyncPoint order;  // of the stream, when it got here
  bool done = false;
};

struct Reports {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, std::deque<std::shared_ptr<Report>>> of_thread;
};

Reports& reports() {
  static auto* instance = new Reports;
  return *instance;
}

void hand_over(uint64_t thread, aclrtCallback function, void* user_data, bool block) {
  Reports& r = reports();
  auto report = std::make_shared<Report>(function, user_data);
  report->order.release();
  std::unique_lock lock(r.mutex);
  r.of_thread[thread].push_back(report);
  r.changed.notify_all();
  while (block && !report->done) {
    check_interrupted();
    r.changed.wait_for(lock, std::chrono::milliseconds(kInterruptPollMs));
  }
  if (block) check::host_code_ends();
}

}  // namespace
}  // namespace emu

using emu::TaskKind;

EMU_API aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* arguments) {
  EMU_ENTER();
  if (!function) return emu::fail_null(__func__, "fn");
  return emu::submit(stream, {"host_function",
                              TaskKind::kHostFunction,
                              [function, arguments] {
                                emu::check::host_code_begins();
                                function(arguments);
                                emu::check::host_code_ends();
                              },
                              {}});
}

EMU_API aclError aclrtSubscribeReport(uint64_t thread, aclrtStream handle) {
  EMU_ENTER();
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (!thread) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSubscribeReport: thread id is 0");
  }
  uint64_t none = 0;
  if (!stream->report_thread.compare_exchange_strong(none, thread)) {
    return emu::fail(ACL_ERROR_REPEAT_SUBSCRIBE,
                     "aclrtSubscribeReport: the stream has a report thread already");
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream handle) {
  EMU_ENTER();
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  if (!stream->report_thread.compare_exchange_strong(thread, 0)) {
    return emu::fail(ACL_ERROR_THREAD_NOT_SUBSCRIBE,
                     "aclrtUnSubscribeReport: this thread is not the stream's report thread");
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclrtLaunchCallback(aclrtCallback function, void* user_data,
                                     aclrtCallbackBlockType block_type, aclrtStream handle) {
  EMU_ENTER();
  if (!function) return emu::fail_null(__func__, "fn");
  auto stream = emu::find_stream(handle, __func__);
  if (!stream) return ACL_ERROR_RT_INVALID_HANDLE;
  uint64_t thread = stream->report_thread;
  if (!thread) {
    return emu::fail(ACL_ERROR_STREAM_NOT_SUBSCRIBE,
                     "aclrtLaunchCallback: no thread subscribed to the stream's reports "
                     "(aclrtSubscribeReport)");
  }
  bool block = block_type == ACL_CALLBACK_BLOCK;
  return emu::submit_to(*stream, {"callback",
                                  TaskKind::kCallback,
                                  [thread, function, user_data, block] {
                                    emu::hand_over(thread, function, user_data, block);
                                  },
                                  {}});
}

EMU_API aclError aclrtProcessReport(int32_t timeout_ms) {
  // No EMU_ENTER: a thread spends its life in here, which would fill the trace.
  if (emu::forked_child()) return emu::fail_forked(__func__);
  emu::Reports& r = emu::reports();
  std::shared_ptr<emu::Report> report;
  {
    std::unique_lock lock(r.mutex);
    auto& queue = r.of_thread[static_cast<uint64_t>(pthread_self())];
    auto ready = [&] { return !queue.empty(); };
    if (timeout_ms < 0) {
      r.changed.wait(lock, ready);
    } else if (!r.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready)) {
      return ACL_ERROR_WAIT_CALLBACK_TIMEOUT;  // the usual case: no message
    }
    report = queue.front();
    queue.pop_front();
  }
  report->order.acquire();
  report->function(report->user_data);
  std::lock_guard lock(r.mutex);
  report->done = true;
  r.changed.notify_all();
  return ACL_SUCCESS;
}
