// SPDX-License-Identifier: Apache-2.0
// Drives graphs over the C ABI without torch, for the sanitizers: capture, forks, replays, task
// groups, external events, refusals. One mode per process (argv[1]), as in runtime_test.cpp. Plain
// ints stand for device memory: a missing edge is a data race for TSan.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"

EMU_API void emu_counters_reset();
EMU_API int emu_set_slow_us(const char* text);

namespace {

constexpr auto kGlobal = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = ACL_MODEL_RI_CAPTURE_MODE_RELAXED;

// Captures what `body` submits to `stream`.
aclmdlRI capture(aclrtStream stream, const std::function<void()>& body,
                 aclmdlRICaptureMode mode = kGlobal) {
  OK(aclmdlRICaptureBegin(stream, mode));
  body();
  aclmdlRI graph = nullptr;
  OK(aclmdlRICaptureEnd(stream, &graph));
  CHECK(graph);
  return graph;
}

void edge(aclrtStream from, aclrtStream to) {
  aclrtEvent event = make_event();
  OK(aclrtRecordEvent(event, from));
  OK(aclrtStreamWaitEvent(to, event));
  OK(aclrtDestroyEvent(event));
}

aclmdlRICaptureStatus status_of(aclrtStream stream) {
  aclmdlRICaptureStatus status;
  aclmdlRI graph;
  OK(aclmdlRICaptureGetInfo(stream, &status, &graph));
  CHECK((status == ACL_MODEL_RI_CAPTURE_STATUS_NONE) == (graph == nullptr));
  return status;
}

void replays() {
  aclrtStream stream = make_stream();
  aclrtStream other = make_stream();
  int value = 1;
  aclmdlRI graph = capture(stream, [&] {
    CHECK(status_of(stream) == ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
    CHECK(status_of(other) == ACL_MODEL_RI_CAPTURE_STATUS_NONE);
    run(stream, [&] { value += 1; });
    run(stream, [&] { value *= 2; });
  });
  CHECK(status_of(stream) == ACL_MODEL_RI_CAPTURE_STATUS_NONE);
  CHECK(value == 1);
  for (aclrtStream on : {stream, other, stream}) {
    OK(aclmdlRIExecuteAsync(graph, on));
    OK(aclrtSynchronizeStream(on));
  }
  CHECK(value == 22);
  // Replays of one graph are one at a time on whatever streams.
  for (int i = 0; i < 50; ++i) {
    OK(aclmdlRIExecuteAsync(graph, i % 2 ? stream : other));
    if (i % 8 == 7) {
      OK(aclrtSynchronizeDevice());
      value = 1;
    }
  }
  OK(aclrtSynchronizeDevice());
  CHECK(value == 10);
  OK(aclmdlRIDestroy(graph));
  FAILS(aclmdlRIExecuteAsync(graph, stream), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
  FAILS(aclmdlRIDestroy(graph), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
  FAILS(aclmdlRIDestroy(stream), ACL_ERROR_RT_INVALID_HANDLE, "kind 'stream', not 'graph'");
  FAILS(aclmdlRIDestroy(nullptr), ACL_ERROR_RT_INVALID_HANDLE, "null");
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(other));
}

void forks() {
  aclrtStream origin = make_stream();
  std::vector<aclrtStream> sides = {make_stream(), make_stream(), make_stream()};
  int seen = 0;
  int parts[3] = {};
  aclmdlRI graph = capture(origin, [&] {
    run(origin, [&] { ++seen; });
    for (size_t i = 0; i < sides.size(); ++i) {
      edge(i == 2 ? sides[1] : origin, sides[i]);  // the last is forked from a fork
      CHECK(status_of(sides[i]) == ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
      run(sides[i], [&, i] { parts[i] = seen + static_cast<int>(i); });
    }
    edge(sides[2], sides[1]);
    run(sides[1], [&] { parts[1] += parts[2]; });
    edge(sides[0], origin);
    edge(sides[1], origin);
    run(origin, [&] { seen = parts[0] + parts[1]; });
  });
  for (int i = 0; i < 30; ++i) {
    OK(aclmdlRIExecuteAsync(graph, i % 2 ? origin : sides[0]));
    OK(aclrtSynchronizeDevice());
    int value = seen;
    CHECK(value == parts[0] + parts[1]);
    seen = i;
  }
  OK(aclmdlRIDestroy(graph));

  // Branches run side by side: each waits for the other.
  std::atomic<int> arrived{0};
  auto meet = [&] {
    ++arrived;
    while (arrived % 2) std::this_thread::yield();
  };
  graph = capture(origin, [&] {
    edge(origin, sides[0]);
    run(sides[0], meet);
    run(origin, meet);
    edge(sides[0], origin);
  });
  for (int i = 0; i < 5; ++i) OK(aclmdlRIExecuteAsync(graph, origin));
  OK(aclrtSynchronizeStream(origin));
  OK(aclmdlRIDestroy(graph));
  for (aclrtStream side : sides) OK(aclrtDestroyStream(side));
  OK(aclrtDestroyStream(origin));
}

// What ends in an error of aclmdlRICaptureEnd leaves every stream as it was.
void bad_ends() {
  aclrtStream origin = make_stream();
  aclrtStream side = make_stream();
  aclmdlRI graph = nullptr;
  auto usable = [&] {
    CHECK(status_of(origin) == ACL_MODEL_RI_CAPTURE_STATUS_NONE);
    CHECK(status_of(side) == ACL_MODEL_RI_CAPTURE_STATUS_NONE);
    int value = 0;
    run(origin, [&] { value = 1; });
    run(side, [] {});
    OK(aclrtSynchronizeDevice());
    CHECK(value == 1);
  };
  FAILS(aclmdlRICaptureEnd(origin, &graph), ACL_ERROR_RT_STREAM_NOT_CAPTURED, "is not being");
  FAILS(aclmdlRICaptureEnd(origin, nullptr), ACL_ERROR_RT_PARAM_INVALID, "null");

  // A fork that nobody joins; one that goes on after its join; one whose record nobody waits for.
  for (int variant = 0; variant < 3; ++variant) {
    OK(aclmdlRICaptureBegin(origin, kGlobal));
    edge(origin, side);
    run(side, [] {});
    if (variant == 1) {
      edge(side, origin);
      run(side, [] {});
    }
    aclrtEvent lost = make_event();
    if (variant == 2) OK(aclrtRecordEvent(lost, side));
    FAILS(aclmdlRICaptureEnd(side, &graph), ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "was begun on");
    FAILS(aclmdlRICaptureEnd(origin, &graph), ACL_ERROR_RT_STREAM_UNJOINED, "not joined again");
    CHECK(!graph);
    OK(aclrtDestroyEvent(lost));
    usable();
  }

  OK(aclmdlRICaptureBegin(origin, kGlobal));
  OK(aclmdlRICaptureTaskGrpBegin(origin));
  FAILS(aclmdlRICaptureEnd(origin, &graph), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "not ended");
  usable();

  OK(aclmdlRICaptureBegin(origin, kGlobal));
  std::thread([&] {
    OK(aclrtSetDevice(0));
    aclmdlRI none = nullptr;
    FAILS(aclmdlRICaptureEnd(origin, &none), ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "thread");
  }).join();
  OK(aclmdlRICaptureEnd(origin, &graph));
  OK(aclmdlRIDestroy(graph));
  OK(aclmdlRICaptureBegin(origin, kRelaxed));
  std::thread([&] {
    OK(aclrtSetDevice(0));
    OK(aclmdlRICaptureEnd(origin, &graph));
  }).join();
  OK(aclmdlRIDestroy(graph));
  usable();
  OK(aclrtDestroyStream(origin));
  OK(aclrtDestroyStream(side));
}

void refusals() {
  aclrtStream stream = make_stream();
  aclrtStream other = make_stream();
  aclrtEvent before = make_event();
  aclrtEvent event = make_event(ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE);
  OK(aclrtRecordEvent(before, other));
  OK(aclrtSynchronizeDevice());
  FAILS(aclmdlRICaptureBegin(nullptr, kGlobal), ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "default");
  FAILS(aclmdlRICaptureBegin(stream, static_cast<aclmdlRICaptureMode>(7)),
        ACL_ERROR_RT_PARAM_INVALID, "mode 7");

  int ran = 0;
  float ms = 0;
  aclrtEventRecordedStatus status;
  aclrtStreamStatus stream_status;
  aclmdlRI early = nullptr;
  aclmdlRICaptureStatus capture_status;
  aclmdlRI graph = capture(stream, [&] {
    FAILS(aclmdlRICaptureBegin(stream, kGlobal), ACL_ERROR_RT_STREAM_CAPTURED, "already");
    FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_CAPTURED, "being captured");
    FAILS(aclrtSynchronizeStreamWithTimeout(stream, 5), ACL_ERROR_RT_STREAM_CAPTURED, "captured");
    FAILS(aclrtSynchronizeDevice(), ACL_ERROR_RT_STREAM_CAPTURED, "of device 0");
    FAILS(aclrtStreamQuery(stream, &stream_status), ACL_ERROR_RT_STREAM_CAPTURED, "captured");
    FAILS(aclrtStreamAbort(stream), ACL_ERROR_RT_STREAM_CAPTURED, "captured");
    FAILS(aclrtDestroyStream(stream), ACL_ERROR_RT_STREAM_CAPTURED, "captured");
    OK(aclrtRecordEvent(event, stream));
    FAILS(aclrtSynchronizeEvent(event), ACL_ERROR_RT_EVENT_CAPTURED, "recorded in a capture");
    FAILS(aclrtQueryEventStatus(event, &status), ACL_ERROR_RT_EVENT_CAPTURED, "capture");
    FAILS(aclrtEventElapsedTime(&ms, event, event), ACL_ERROR_RT_EVENT_CAPTURED, "capture");
    FAILS(aclrtRecordEvent(event, other), ACL_ERROR_RT_EVENT_CAPTURED, "not part of it");
    FAILS(aclrtResetEvent(event, stream), ACL_ERROR_RT_STREAM_CAPTURED, "captured");
    FAILS(emu::submit(nullptr, {"aclnnX", emu::TaskKind::kOperator, [] {}, {}}),
          ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "default stream");
    FAILS(aclmdlRICaptureTaskGrpEnd(stream, &early), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "begun");
    OK(aclmdlRICaptureGetInfo(stream, &capture_status, &early));
    FAILS(aclmdlRIExecuteAsync(early, other), ACL_ERROR_RT_MODEL_CAPTURED, "has not ended");
    FAILS(aclmdlRIDestroy(early), ACL_ERROR_RT_MODEL_CAPTURED, "has not ended");
    // Other streams are free.
    OK(aclrtSynchronizeStream(other));
    run(stream, [&] { ++ran; });
  });
  CHECK(early == graph && ran == 0);
  // The event has no record but the captured one.
  OK(aclrtSynchronizeEvent(event));
  OK(aclrtRecordEvent(event, other));
  OK(aclrtSynchronizeEvent(event));

  // A graph on a stream that is captured.
  aclmdlRI outer = capture(stream, [&] {
    FAILS(aclmdlRIExecuteAsync(graph, stream), ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "replayed");
  });
  OK(aclmdlRIDestroy(outer));
  OK(aclmdlRIExecuteAsync(graph, stream));
  OK(aclrtSynchronizeStream(stream));
  CHECK(ran == 1);
  OK(aclmdlRIDestroy(graph));

  // Errors that invalidate the capture: it can only be ended then, and says why.
  auto invalidated = [&](const std::function<void()>& body, const char* why) {
    OK(aclmdlRICaptureBegin(stream, kGlobal));
    body();
    CHECK(status_of(stream) == ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED);
    FAILS(emu::submit(stream, {"aclnnX", emu::TaskKind::kOperator, [] {}, {}}),
          ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, why);
    FAILS(aclmdlRICaptureEnd(stream, &graph), ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, why);
    CHECK(status_of(stream) == ACL_MODEL_RI_CAPTURE_STATUS_NONE);
  };
  invalidated(
      [&] {
        FAILS(aclrtStreamWaitEvent(stream, before), ACL_ERROR_RT_CAPTURE_DEPENDENCY, "outside");
      },
      "outside of the capture");
  invalidated(
      [&] {
        OK(aclrtRecordEvent(event, stream));
        FAILS(aclrtStreamWaitEvent(nullptr, event), ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT,
              "default stream");
      },
      "default stream");
  invalidated(
      [&] {
        OK(aclmdlRICaptureTaskGrpBegin(stream));
        FAILS(aclrtRecordEvent(event, stream), ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT, "task group");
      },
      "task group");
  invalidated(
      [&] {
        OK(aclmdlRICaptureBegin(other, kGlobal));
        OK(aclrtRecordEvent(event, other));
        FAILS(aclrtStreamWaitEvent(stream, event), ACL_ERROR_STREAM_CAPTURE_CONFLICT, "another");
        FAILS(aclmdlRICaptureEnd(other, &graph), ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "other");
      },
      "another capture");
  OK(aclrtSynchronizeDevice());
  for (aclrtEvent each : {before, event}) OK(aclrtDestroyEvent(each));
  for (aclrtStream each : {stream, other}) OK(aclrtDestroyStream(each));
}

void modes() {
  aclrtStream stream = make_stream();
  aclrtStream other = make_stream();
  void* device = nullptr;
  OK(aclrtMalloc(&device, 64, ACL_MEM_MALLOC_HUGE_FIRST));
  char host[64] = {};
  auto copy = [&] { return aclrtMemcpy(device, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE); };
  auto copy_async = [&](aclrtStream on) {
    return aclrtMemcpyAsync(device, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE, on);
  };
  constexpr int kSync = ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
  constexpr int kAsync = ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC;
  auto elsewhere = [](const std::function<void()>& body) {
    std::thread([&] {
      OK(aclrtSetDevice(0));
      body();
    }).join();
  };
  auto exchange = [](aclmdlRICaptureMode mode) {
    OK(aclmdlRICaptureThreadExchangeMode(&mode));
    return mode;
  };
  auto end = [&] {
    aclmdlRI graph;
    OK(aclmdlRICaptureEnd(stream, &graph));
    OK(aclmdlRIDestroy(graph));
  };

  OK(aclmdlRICaptureBegin(stream, kGlobal));
  FAILS(copy(), kSync, "not permitted");
  FAILS(aclrtMemset(device, 64, 0, 64), kSync, "not permitted");
  FAILS(copy_async(other), kAsync, "pageable");
  elsewhere([&] {
    FAILS(copy(), kSync, "not permitted");
    CHECK(exchange(kThreadLocal) == kGlobal);
    OK(copy());
    OK(copy_async(other));
  });
  CHECK(exchange(kThreadLocal) == kGlobal);
  FAILS(copy(), kSync, "not permitted");
  CHECK(exchange(kRelaxed) == kThreadLocal);
  OK(copy());
  OK(copy_async(other));
  FAILS(copy_async(stream), ACL_ERROR_RT_STREAM_CAPTURED, "being captured");
  CHECK(exchange(kGlobal) == kRelaxed);
  void* more = nullptr;  // allocation is not among the calls that CANN forbids
  OK(aclrtMalloc(&more, 64, ACL_MEM_MALLOC_HUGE_FIRST));
  OK(aclrtFree(more));
  end();

  OK(aclmdlRICaptureBegin(stream, kThreadLocal));
  FAILS(copy(), kSync, "not permitted");
  elsewhere([&] { OK(copy()); });
  end();

  OK(aclmdlRICaptureBegin(stream, kRelaxed));
  OK(copy());
  OK(copy_async(other));
  FAILS(copy_async(stream), ACL_ERROR_RT_STREAM_CAPTURED, "being captured");
  elsewhere([&] { OK(copy()); });
  end();
  OK(copy());
  OK(aclrtFree(device));
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(other));
}

void task_groups() {
  aclrtStream stream = make_stream();
  aclrtStream update = make_stream();
  std::atomic<int> first{0};
  std::atomic<int> second{0};
  aclrtTaskGrp group = nullptr;
  aclrtTaskGrp empty = nullptr;
  auto set = [&](aclrtStream on, int value) {
    run(on, [&, value] { first = value; });
    run(on, [&, value] { second = value; }, "second_operator");
  };
  FAILS(aclmdlRICaptureTaskGrpBegin(stream), ACL_ERROR_RT_STREAM_NOT_CAPTURED, "not being");
  aclmdlRI graph = capture(stream, [&] {
    OK(aclmdlRICaptureTaskGrpBegin(stream));
    FAILS(aclmdlRICaptureTaskGrpBegin(stream), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "already");
    set(stream, 1);
    OK(aclmdlRICaptureTaskGrpEnd(stream, &group));
    FAILS(aclmdlRICaptureTaskUpdateBegin(update, group), ACL_ERROR_RT_MODEL_CAPTURED, "not ended");
    FAILS(aclmdlRICaptureTaskUpdateBegin(stream, group), ACL_ERROR_RT_STREAM_CAPTURED, "captured");
    OK(aclmdlRICaptureTaskGrpBegin(stream));
    OK(aclmdlRICaptureTaskGrpEnd(stream, &empty));
  });
  auto replayed = [&](int expected) {
    OK(aclmdlRIExecuteAsync(graph, stream));
    OK(aclrtSynchronizeStream(stream));
    CHECK(first == expected && second == expected);
  };
  replayed(1);

  // In stream order of the update stream, and not before.
  std::atomic<bool> go{false};
  run(update, [&] {
    while (!go) std::this_thread::yield();
  });
  OK(aclmdlRICaptureTaskUpdateBegin(update, group));
  set(update, 2);
  OK(aclmdlRICaptureTaskUpdateEnd(update));
  replayed(1);
  go = true;
  OK(aclrtSynchronizeStream(update));
  replayed(2);
  replayed(2);

  // Refused updates change nothing.
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task update");
  FAILS(aclmdlRICaptureTaskUpdateBegin(update, graph), ACL_ERROR_RT_INVALID_HANDLE, "kind 'graph'");
  FAILS(aclmdlRICaptureTaskUpdateBegin(update, nullptr), ACL_ERROR_RT_INVALID_HANDLE, "null");
  OK(aclmdlRICaptureTaskUpdateBegin(update, group));
  FAILS(aclmdlRICaptureTaskUpdateBegin(update, empty), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "open");
  FAILS(aclmdlRICaptureTaskUpdateBegin(stream, group), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "other");
  FAILS(aclmdlRICaptureBegin(update, kGlobal), ACL_ERROR_STREAM_TASK_GROUP_STATUS, "open");
  run(update, [&] { first = 9; });
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), ACL_ERROR_RT_INTERNAL_ERROR,
        "2 tasks and the update 1");
  OK(aclmdlRICaptureTaskUpdateBegin(update, group));
  set(update, 9);
  FAILS(emu::submit(update, {"third", emu::TaskKind::kOperator, [] {}, {}}),
        ACL_ERROR_RT_INTERNAL_ERROR, "one task more than the 2");
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), ACL_ERROR_RT_INTERNAL_ERROR, "one task more");
  OK(aclmdlRICaptureTaskUpdateBegin(update, group));
  FAILS(emu::submit(update, {"second_operator", emu::TaskKind::kOperator, [] {}, {}}),
        ACL_ERROR_RT_INTERNAL_ERROR, "cannot become second_operator");
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), ACL_ERROR_RT_INTERNAL_ERROR, "cannot become");
  OK(aclmdlRICaptureTaskUpdateBegin(update, group));
  aclrtEvent event = make_event(ACL_EVENT_EXTERNAL);
  FAILS(aclrtRecordEvent(event, update), ACL_ERROR_RT_INTERNAL_ERROR, "update is open");
  FAILS(aclmdlRICaptureTaskUpdateEnd(update), ACL_ERROR_RT_INTERNAL_ERROR, "event_record");
  OK(aclmdlRICaptureTaskUpdateBegin(update, empty));
  OK(aclmdlRICaptureTaskUpdateEnd(update));
  OK(aclrtSynchronizeDevice());
  replayed(2);

  // Unordered updates: some value of both, never anything else.
  std::thread updater([&] {
    OK(aclrtSetDevice(0));
    for (int i = 10; i < 60; ++i) {
      OK(aclmdlRICaptureTaskUpdateBegin(update, group));
      set(update, i);
      OK(aclmdlRICaptureTaskUpdateEnd(update));
    }
  });
  for (int i = 0; i < 50; ++i) OK(aclmdlRIExecuteAsync(graph, stream));
  updater.join();
  OK(aclrtSynchronizeDevice());
  replayed(59);
  OK(aclmdlRIDestroy(graph));
  FAILS(aclmdlRICaptureTaskUpdateBegin(update, group), ACL_ERROR_RT_INVALID_HANDLE, "destroyed");
  OK(aclrtDestroyEvent(event));
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(update));
}

void external_events() {
  aclrtStream stream = make_stream();
  aclrtStream other = make_stream();
  aclrtEvent event = make_event(ACL_EVENT_EXTERNAL);
  aclrtEventRecordedStatus status;
  FAILS(aclrtSynchronizeEvent(event), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "external");
  FAILS(aclrtQueryEventStatus(event, &status), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "external");
  int given = 0;
  int seen = 0;
  aclmdlRI graph = capture(stream, [&] {
    OK(aclrtStreamWaitEvent(stream, event));
    OK(aclrtResetEvent(event, stream));
    run(stream, [&] { seen = given; });
  });
  aclrtStreamStatus stream_status;
  for (int i = 1; i < 30; ++i) {
    OK(aclmdlRIExecuteAsync(graph, stream));
    if (i % 10 == 0) {
      sleep_ms(5);
      OK(aclrtStreamQuery(stream, &stream_status));
      CHECK(stream_status == ACL_STREAM_STATUS_NOT_READY);
    }
    run(other, [&, i] { given = i; });
    OK(aclrtRecordEvent(event, other));
    edge(stream, other);  // the next value waits for the replay
    OK(aclrtSynchronizeStream(stream));
    CHECK(seen == i);
  }
  // Without its record, a replay waits for ever: aborting the stream ends it.
  OK(aclmdlRIExecuteAsync(graph, stream));
  FAILS(aclrtSynchronizeStreamWithTimeout(stream, 50), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "left");
  OK(aclrtStreamAbort(stream));
  OK(aclrtSynchronizeStream(stream));
  CHECK(seen == 29);
  // The handle may go: the graph keeps the event.
  OK(aclrtDestroyEvent(event));
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(other));
}

void flights() {
  aclrtStream stream = make_stream();
  aclrtStream side = make_stream();
  aclrtEvent event = make_event(ACL_EVENT_EXTERNAL);
  std::atomic<int> ran{0};
  auto blocked_in_a_branch = [&] {
    return capture(stream, [&] {
      edge(stream, side);
      OK(aclrtStreamWaitEvent(side, event));
      OK(aclrtResetEvent(event, side));
      run(side, [&] { ++ran; });
      run(stream, [&] { ++ran; });
      edge(side, stream);
    });
  };
  aclmdlRI graph = blocked_in_a_branch();
  OK(aclmdlRIExecuteAsync(graph, stream));
  std::thread opener([&] {
    OK(aclrtSetDevice(0));
    sleep_ms(30);
    OK(aclrtRecordEvent(event, side));
  });
  OK(aclmdlRIDestroy(graph));  // waits for the replay
  CHECK(ran == 2);
  opener.join();

  // An aborted stream takes its branches along.
  graph = blocked_in_a_branch();
  OK(aclmdlRIExecuteAsync(graph, stream));
  OK(aclmdlRIExecuteAsync(graph, stream));
  FAILS(aclrtSynchronizeStreamWithTimeout(stream, 30), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "left");
  OK(aclrtStreamAbort(stream));
  OK(aclrtSynchronizeDevice());
  OK(aclrtRecordEvent(event, side));
  OK(aclmdlRIExecuteAsync(graph, stream));
  OK(aclrtSynchronizeDevice());
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyEvent(event));

  // A slow device: replays take their time.
  graph = capture(stream, [&] { run(stream, [] {}); });
  OK(aclmdlRIExecuteAsync(graph, stream));
  OK(aclrtSynchronizeStream(stream));
  CHECK(emu_set_slow_us("what") == -1 && emu_set_slow_us("a:b") == -1);
  CHECK(emu_set_slow_us("test_operator:5000,20000") == 0);
  auto start = std::chrono::steady_clock::now();
  OK(aclmdlRIExecuteAsync(graph, stream));
  OK(aclrtSynchronizeStream(stream));
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(25));
  CHECK(emu_set_slow_us("") == 0);
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(side));
}

// Memory that went since the capture is an error of the device, not of the process.
void stale_memory() {
  aclrtStream stream = make_stream();
  for (bool host : {false, true}) {
    void* device = nullptr;
    void* pinned = nullptr;
    OK(aclrtMalloc(&device, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMallocHost(&pinned, 64));
    std::memset(pinned, 1, 64);
    aclmdlRI graph = capture(stream, [&] {
      OK(aclrtMemcpyAsync(device, 64, pinned, 64, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    });
    std::memset(pinned, 2, 64);  // read at each replay
    OK(aclmdlRIExecuteAsync(graph, stream));
    OK(aclrtSynchronizeStream(stream));
    char back[64];
    OK(aclrtMemcpy(back, 64, device, 64, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(back[63] == 2);
    OK(host ? aclrtFreeHost(pinned) : aclrtFree(device));
    OK(aclmdlRIExecuteAsync(graph, stream));
    FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_RT_AICORE_EXCEPTION,
          "since the task was captured");
    OK(aclrtResetDevice(0));
    OK(aclrtSetDevice(0));
    OK(aclmdlRIDestroy(graph));
    OK(host ? aclrtFree(device) : aclrtFreeHost(pinned));
  }
  OK(aclrtDestroyStream(stream));
}

void counted() {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event(ACL_EVENT_EXTERNAL);
  emu_counters_reset();
  aclrtTaskGrp group = nullptr;
  auto attention = [](aclrtStream on) { run(on, [] {}, "aclnnAttention"); };
  aclmdlRI graph = capture(stream, [&] {
    run(stream, [] {}, "aclnnMatmul");
    run(stream, [] {}, "aclnnMatmul");
    OK(aclrtStreamWaitEvent(stream, event));
    OK(aclmdlRICaptureTaskGrpBegin(stream));
    attention(stream);
    OK(aclmdlRICaptureTaskGrpEnd(stream, &group));
  });
  OK(aclrtRecordEvent(event, stream));
  OK(aclmdlRICaptureTaskUpdateBegin(stream, group));
  attention(stream);
  OK(aclmdlRICaptureTaskUpdateEnd(stream));
  for (int i = 0; i < 3; ++i) OK(aclmdlRIExecuteAsync(graph, stream));
  run(stream, [] {}, "aclnnMatmul");
  OK(aclrtSynchronizeStream(stream));
  std::string text = counters();
  for (const char* part :
       {"\"launches\":{\"aclnnMatmul\":1}", "\"replayed_count\":12", "\"aclnnMatmul\":6",
        "\"event_wait\":3", "\"aclnnAttention\":3", "\"graph_captures\":1", "\"graph_replays\":3",
        "\"task_updates\":1", "\"captured_nodes\":4", "\"external_event_records\":1",
        "\"external_event_waits\":0",
        "\"nodes\":4,\"streams\":1,\"events\":0,\"task_groups\":1,"
        "\"replays\":3,\"updates\":1"}) {
    if (text.find(part) == std::string::npos) std::fprintf(stderr, "%s\n%s\n", part, text.c_str());
    CHECK(text.find(part) != std::string::npos);
  }
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyEvent(event));
  OK(aclrtDestroyStream(stream));
}

void all() {
  replays();
  forks();
  bad_ends();
  refusals();
  modes();
  task_groups();
  external_events();
  flights();
  stale_memory();
  counted();
}

// With ASCEND_EMU_STREAM_BUDGET=5 (one is the default stream) and ASCEND_EMU_EVENT_BUDGET=3.
void budget() {
  aclrtStream stream = make_stream();
  aclrtStream side = make_stream();
  aclrtStream more = nullptr;
  OK(aclrtSynchronizeDevice());
  aclmdlRI graph = capture(stream, [&] {
    edge(stream, side);
    edge(side, stream);
  });
  FAILS(aclrtCreateStream(&more), ACL_ERROR_RT_NO_STREAM_RESOURCE, "ASCEND_EMU_STREAM_BUDGET");
  FAILS(aclmdlRICaptureBegin(stream, kGlobal), ACL_ERROR_RT_NO_STREAM_RESOURCE, "no stream left");
  // The graph's two records hold two of the three events.
  aclrtEvent external = make_event(ACL_EVENT_EXTERNAL);
  aclrtEvent none = nullptr;
  FAILS(aclrtCreateEventExWithFlag(&none, ACL_EVENT_EXTERNAL), ACL_ERROR_RT_NO_EVENT_RESOURCE,
        "ASCEND_EMU_EVENT_BUDGET");
  aclrtEvent ordinary = make_event();
  FAILS(aclrtRecordEvent(ordinary, stream), ACL_ERROR_RT_NO_EVENT_RESOURCE, "no event left");
  OK(aclmdlRIExecuteAsync(graph, stream));
  OK(aclrtSynchronizeDevice());
  OK(aclmdlRIDestroy(graph));

  // All of it came back. A fork without a stream fails where the wait asks for it.
  OK(aclrtCreateStream(&more));
  OK(aclmdlRICaptureBegin(stream, kGlobal));
  OK(aclrtRecordEvent(ordinary, stream));
  FAILS(aclrtStreamWaitEvent(side, ordinary), ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "no stream left");
  FAILS(aclmdlRICaptureEnd(stream, &graph), ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "was left");
  OK(aclrtDestroyStream(more));
  OK(aclrtDestroyEvent(external));
  graph = capture(stream, [&] {
    edge(stream, side);
    edge(side, stream);
  });
  OK(aclmdlRIDestroy(graph));
  OK(aclrtDestroyEvent(ordinary));
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(side));
}

// Exit while a replay waits for what nobody will record, in a branch and in the first lane.
void busy_exit() {
  for (bool in_branch : {false, true}) {
    aclrtStream stream = make_stream();
    aclrtStream side = make_stream();
    aclrtEvent event = make_event(ACL_EVENT_EXTERNAL);
    aclmdlRI graph = capture(stream, [&] {
      edge(stream, side);
      OK(aclrtStreamWaitEvent(in_branch ? side : stream, event));
      edge(side, stream);
    });
    OK(aclmdlRIExecuteAsync(graph, stream));
  }
  sleep_ms(20);
}

// A replay that never ends: CANN refuses to destroy its graph after 10 s.
void stuck() {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event(ACL_EVENT_EXTERNAL);
  aclmdlRI graph = capture(stream, [&] { OK(aclrtStreamWaitEvent(stream, event)); });
  OK(aclmdlRIExecuteAsync(graph, stream));
  FAILS(aclmdlRIDestroy(graph), ACL_ERROR_RT_MODEL_RUNNING, "still replayed");
  OK(aclrtRecordEvent(event, make_stream()));
  OK(aclmdlRIDestroy(graph));
}

}  // namespace

int main(int count, char** arguments) {
  std::string mode = count > 1 ? arguments[1] : "";
  OK(aclrtSetDevice(0));
  if (mode == "all") {
    all();
  } else if (mode == "budget") {
    budget();
  } else if (mode == "busy_exit") {
    busy_exit();
  } else if (mode == "stuck") {
    stuck();
  } else {
    std::fprintf(stderr, "usage: graph_test all|budget|busy_exit|stuck\n");
    return 2;
  }
  std::printf("%s: passed\n", mode.c_str());
  return 0;
}
