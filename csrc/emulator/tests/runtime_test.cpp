// SPDX-License-Identifier: Apache-2.0
// Drives the C ABI of libascendcl without torch, so that the sanitizers see our code and nothing
// else. One mode per process (argv[1]), since some end in a state that nothing recovers from.
// Values are checked by the tests under tests/device; here it is threads, lifetimes and errors.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/api.h"
#include "runtime/delay.h"
#include "runtime/handles.h"
#include "tests/check.h"

EMU_API void emu_counters_reset();
EMU_API int emu_step_begin(const char* label);
EMU_API int emu_step_end();
EMU_API uint64_t emu_pinned_allocations();

namespace {

void handles() {
  FAILS(aclrtCreateStream(nullptr), ACL_ERROR_RT_CONTEXT_NULL - 2, "null");
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  int local = 0;
  FAILS(aclrtSynchronizeStream(event), ACL_ERROR_RT_INVALID_HANDLE, "kind 'event', not 'stream'");
  FAILS(aclrtSynchronizeStream(&local), ACL_ERROR_RT_INVALID_HANDLE, "not a handle");
  FAILS(aclrtDestroyStream(nullptr), ACL_ERROR_RT_INVALID_HANDLE, "null");
  FAILS(aclrtRecordEvent(nullptr, stream), ACL_ERROR_RT_INVALID_HANDLE, "null");
  OK(aclrtDestroyStream(stream));
  FAILS(aclrtDestroyStream(stream), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
  FAILS(aclrtRecordEvent(event, stream), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
  // The slot is used again: the old handle stays dead.
  aclrtStream other = make_stream();
  FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
  OK(aclrtDestroyStream(other));
  OK(aclrtDestroyEvent(event));
  FAILS(aclrtDestroyEvent(event), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
}

// Plain ints, ordered by streams and events alone: a missing edge is a data race for TSan.
void ordering() {
  constexpr int kStreams = 4;
  constexpr int kRounds = 200;
  std::vector<aclrtStream> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(make_stream());
  int value = 0;
  for (int round = 0; round < kRounds; ++round) {
    aclrtStream from = streams[round % kStreams];
    aclrtStream to = streams[(round + 1) % kStreams];
    run(from, [&value] { ++value; });
    aclrtEvent event = make_event();
    OK(aclrtRecordEvent(event, from));
    OK(aclrtStreamWaitEvent(to, event));
    OK(aclrtDestroyEvent(event));  // pending uses keep it alive
  }
  OK(aclrtSynchronizeDevice());
  CHECK(value == kRounds);
  for (aclrtStream stream : streams) OK(aclrtDestroyStream(stream));
}

void events() {
  aclrtStream stream = make_stream();
  aclrtEvent start = make_event(ACL_EVENT_TIME_LINE);
  aclrtEvent end = make_event(ACL_EVENT_TIME_LINE);
  aclrtEventRecordedStatus status;
  std::atomic<bool> go{false};
  OK(aclrtRecordEvent(start, stream));
  run(stream, [&go] {
    while (!go) sleep_ms(1);
  });
  OK(aclrtRecordEvent(end, stream));
  OK(aclrtQueryEventStatus(end, &status));
  CHECK(status == ACL_EVENT_RECORDED_STATUS_NOT_READY);
  FAILS(aclrtSynchronizeEventWithTimeout(end, 20), ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "20 ms");
  FAILS(aclrtSynchronizeStreamWithTimeout(stream, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
        "2 tasks are left");
  float ms = 0;
  FAILS(aclrtEventElapsedTime(&ms, start, end), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "not run");
  go = true;
  OK(aclrtSynchronizeEvent(end));
  OK(aclrtEventElapsedTime(&ms, start, end));
  CHECK(ms >= 20);
  FAILS(aclrtEventElapsedTime(&ms, end, start), ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "before");
  OK(aclrtDestroyEvent(start));
  OK(aclrtDestroyEvent(end));

  // An external event is a flag that the device sets, awaits and clears.
  aclrtEvent external = nullptr;
  OK(aclrtCreateEventWithFlag(&external, ACL_EVENT_EXTERNAL));
  aclrtStream other = make_stream();
  int passes = 0;
  for (int round = 0; round < 3; ++round) {
    OK(aclrtStreamWaitEvent(stream, external));
    OK(aclrtResetEvent(external, stream));
    run(stream, [&passes] { ++passes; });
    FAILS(aclrtSynchronizeStreamWithTimeout(stream, 10), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "left");
    OK(aclrtRecordEvent(external, other));
    OK(aclrtSynchronizeStream(stream));
    CHECK(passes == round + 1);
  }
  // Never recorded again: destroying by force gives up the wait.
  OK(aclrtStreamWaitEvent(stream, external));
  OK(aclrtDestroyStreamForce(stream));
  OK(aclrtDestroyStream(other));
  OK(aclrtDestroyEvent(external));
}

void threads() {
  std::vector<std::thread> all;
  for (int t = 0; t < 6; ++t) {
    all.emplace_back([t] {
      OK(aclrtSetDevice(t % 2));
      for (int i = 0; i < 15; ++i) {
        aclrtStream stream = make_stream();
        aclrtEvent event = make_event();
        void* memory = nullptr;
        OK(aclrtMalloc(&memory, 4096, ACL_MEM_MALLOC_HUGE_FIRST));
        OK(aclrtMemsetAsync(memory, 4096, t, 4096, stream));
        int sum = 0;
        for (int k = 0; k < 10; ++k) run(stream, [&sum] { ++sum; });
        OK(aclrtRecordEvent(event, stream));
        OK(aclrtStreamWaitEvent(nullptr, event));
        OK(aclrtSynchronizeEvent(event));
        CHECK(sum == 10);
        unsigned char byte = 0;
        OK(aclrtMemcpy(&byte, 1, static_cast<char*>(memory) + 4095, 1, ACL_MEMCPY_DEVICE_TO_HOST));
        CHECK(byte == t);
        OK(aclrtFree(memory));
        OK(aclrtDestroyStream(stream));
        OK(aclrtDestroyEvent(event));
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

void callbacks() {
  aclrtStream stream = make_stream();
  std::atomic<bool> stop{false};
  std::thread reporter([&stop] {
    while (!stop) aclrtProcessReport(10);
  });
  auto id = static_cast<uint64_t>(reporter.native_handle());
  int calls = 0;
  auto call = [](void* counter) { ++*static_cast<int*>(counter); };
  FAILS(aclrtLaunchCallback(call, &calls, ACL_CALLBACK_BLOCK, stream),
        ACL_ERROR_STREAM_NOT_SUBSCRIBE, "no thread subscribed");
  OK(aclrtSubscribeReport(id, stream));
  for (int i = 0; i < 20; ++i) OK(aclrtLaunchCallback(call, &calls, ACL_CALLBACK_BLOCK, stream));
  OK(aclrtLaunchHostFunc(stream, call, &calls));
  OK(aclrtSynchronizeStream(stream));
  CHECK(calls == 21);
  OK(aclrtUnSubscribeReport(id, stream));
  stop = true;
  reporter.join();
  // A task that waits for its own stream would wait for ever.
  run(stream, [stream] {
    FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID, "its own stream");
  });
  OK(aclrtSynchronizeStream(stream));
  OK(aclrtDestroyStream(stream));
}

void values() {
  void* word = nullptr;
  OK(aclrtMalloc(&word, 64, ACL_MEM_MALLOC_HUGE_FIRST));
  OK(aclrtMemset(word, 64, 0, 64));
  aclrtStream waiter = make_stream();
  aclrtStream writer = make_stream();
  OK(aclrtValueWait(word, 7, ACL_STREAM_WAIT_VALUE_GEQ, waiter));
  FAILS(aclrtSynchronizeStreamWithTimeout(waiter, 10), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "left");
  OK(aclrtValueWrite(word, 8, 0, writer));
  OK(aclrtSynchronizeStream(waiter));
  FAILS(aclrtValueWrite(static_cast<char*>(word) + 4, 1, 0, writer), ACL_ERROR_RT_ADDR_UNALIGNED,
        "8 bytes");
  OK(aclrtDestroyStream(waiter));
  OK(aclrtDestroyStream(writer));
  OK(aclrtFree(word));
}

void memory() {
  void* device = nullptr;
  void* pinned = nullptr;
  OK(aclrtMalloc(&device, 100, ACL_MEM_MALLOC_HUGE_FIRST));
  OK(aclrtMallocHost(&pinned, 100));
  aclrtPtrAttributes attributes;
  OK(aclrtPointerGetAttributes(device, &attributes));
  CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE);
  OK(aclrtPointerGetAttributes(pinned, &attributes));
  CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_HOST);
  int local = 0;
  OK(aclrtPointerGetAttributes(&local, &attributes));
  CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_UNREGISTERED);

  FAILS(aclrtMalloc(&device, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_PARAM_INVALID,
        "size is 0");
  void* huge = nullptr;
  FAILS(aclrtMalloc(&huge, size_t{1} << 50, ACL_MEM_MALLOC_HUGE_FIRST),
        ACL_ERROR_RT_MEMORY_ALLOCATION, "out of memory");
  FAILS(aclrtFree(nullptr), ACL_ERROR_RT_PARAM_INVALID, "null");
  FAILS(aclrtFree(static_cast<char*>(device) + 1), ACL_ERROR_RT_PARAM_INVALID, "inside");
  FAILS(aclrtFree(pinned), ACL_ERROR_RT_PARAM_INVALID, "aclrtFreeHost");
  FAILS(aclrtFreeHost(device), ACL_ERROR_RT_PARAM_INVALID, "aclrtMallocHost");

  // Registration and page-locked allocations are independent of each other.
  void* mapped = nullptr;
  FAILS(aclrtHostRegister(pinned, 0, ACL_HOST_REGISTER_MAPPED, &mapped), ACL_ERROR_RT_PARAM_INVALID,
        "size is 0");
  FAILS(aclrtHostRegister(static_cast<char*>(pinned) + 8, 8, ACL_HOST_REGISTER_MAPPED, &mapped),
        ACL_ERROR_RT_ADDR_UNALIGNED, "4096");
  OK(aclrtHostRegister(pinned, 100, ACL_HOST_REGISTER_MAPPED, &mapped));
  CHECK(mapped == pinned);
  FAILS(aclrtHostRegister(pinned, 50, ACL_HOST_REGISTER_MAPPED, &mapped),
        ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "already");
  FAILS(aclrtFreeHost(pinned), ACL_ERROR_RT_PARAM_INVALID, "still registered");
  OK(aclrtHostUnregister(pinned));
  FAILS(aclrtHostUnregister(pinned), ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "not the start");
  OK(aclrtFreeHost(pinned));
  FAILS(aclrtFreeHost(pinned), ACL_ERROR_RT_PARAM_INVALID, "not the start");

  char host[200] = "text";
  FAILS(aclrtMemcpy(device, 100, host, 101, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID,
        "destMax");
  FAILS(aclrtMemcpy(device, 1 << 20, host, 1 << 20, ACL_MEMCPY_HOST_TO_DEVICE),
        ACL_ERROR_RT_PARAM_INVALID, "past the end");
  FAILS(aclrtMemcpy(host, 100, device, 100, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID,
        "does not fit");
  FAILS(aclrtMemcpyAsync(host, 10, host + 100, 10, ACL_MEMCPY_HOST_TO_HOST, nullptr),
        ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "host to host");
  OK(aclrtMemcpy(device, 100, host, 100, ACL_MEMCPY_HOST_TO_DEVICE));
  char back[100] = "";
  OK(aclrtMemcpy(back, 100, device, 100, ACL_MEMCPY_DEFAULT));
  CHECK(std::strcmp(back, "text") == 0);
  void* stale = device;
  OK(aclrtFree(device));
  FAILS(aclrtMemcpy(back, 100, stale, 100, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID,
        "freed?");
}

void virtual_memory() {
  constexpr size_t kPage = size_t{2} << 20;
  size_t free_before = 0;
  size_t total = 0;
  OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_before, &total));
  void* range = nullptr;
  OK(aclrtReserveMemAddress(&range, 8 * kPage, 0, nullptr, 0));
  aclrtPhysicalMemProp properties = {};
  properties.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
  aclrtDrvMemHandle first = nullptr;
  aclrtDrvMemHandle second = nullptr;
  FAILS(aclrtMallocPhysical(&first, 100, &properties, 0), ACL_ERROR_RT_PARAM_INVALID,
        "granularity");
  OK(aclrtMallocPhysical(&first, kPage, &properties, 0));
  OK(aclrtMallocPhysical(&second, kPage, &properties, 0));
  char* at = static_cast<char*>(range);
  OK(aclrtMapMem(at, kPage, 0, first, 0));
  OK(aclrtMapMem(at + kPage, kPage, 0, second, 0));
  FAILS(aclrtMapMem(at, kPage, 0, second, 0), ACL_ERROR_RT_PARAM_INVALID, "mapped already");
  size_t free_now = 0;
  OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_now, &total));
  CHECK(free_before - free_now == 2 * kPage);
  // One copy across both mappings; none past them.
  std::vector<char> host(2 * kPage, 'x');
  OK(aclrtMemcpy(at, 2 * kPage, host.data(), 2 * kPage, ACL_MEMCPY_HOST_TO_DEVICE));
  FAILS(aclrtMemcpy(at + kPage + 1, kPage, host.data(), kPage, ACL_MEMCPY_HOST_TO_DEVICE),
        ACL_ERROR_RT_PARAM_INVALID, "not mapped throughout");
  FAILS(aclrtReleaseMemAddress(range), ACL_ERROR_RT_PARAM_INVALID, "still mapped");
  // The same memory at another address shows the same bytes; freed memory comes back empty.
  OK(aclrtMapMem(at + 4 * kPage, kPage, 0, first, 0));
  char byte = 0;
  OK(aclrtMemcpy(&byte, 1, at + 5 * kPage - 1, 1, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK(byte == 'x');
  OK(aclrtUnmapMem(at));
  FAILS(aclrtMemcpy(&byte, 1, at, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID,
        "not mapped");
  OK(aclrtUnmapMem(at + kPage));
  OK(aclrtUnmapMem(at + 4 * kPage));
  OK(aclrtFreePhysical(first));
  OK(aclrtFreePhysical(second));
  FAILS(aclrtFreePhysical(first), ACL_ERROR_RT_INVALID_HANDLE, "was destroyed");
  OK(aclrtReleaseMemAddress(range));
  OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_now, &total));
  CHECK(free_before == free_now);
}

void steps() {
  emu_counters_reset();
  aclrtStream stream = make_stream();
  CHECK(emu_step_end() == -1);
  CHECK(emu_step_begin(nullptr) == -1);
  for (int i = 0; i < 3; ++i) {
    CHECK(emu_step_begin("test \"step\"") == 0);
    CHECK(emu_step_begin("nested") == -1);
    run(stream, [] {}, "aclnnTest");
    std::thread other([] {
      OK(aclrtSetDevice(0));
      OK(aclrtSynchronizeDevice());
    });
    other.join();
    CHECK(emu_step_end() == 0);
  }
  std::string text = counters();
  size_t step = text.find("\"test \\\"step\\\"\":{\"count\":3,\"this_thread\":");
  CHECK(step != std::string::npos);
  size_t others = text.find("\"other_threads\":", step);
  CHECK(text.find("\"aclnnTest\":3", step) < others);
  size_t wait = text.find("\"aclrtSynchronizeDevice\":{\"count\":3", step);
  CHECK(wait != std::string::npos && wait > others);
  OK(aclrtDestroyStream(stream));
}

void failure() {
  OK(aclrtSetDevice(1));
  aclrtStream stream = make_stream();
  aclrtStream other = make_stream();
  aclrtEvent event = make_event();
  bool ran = false;
  run(stream, [] { throw std::runtime_error("made to fail"); }, "aclnnFailing");
  emu::submit(stream, {"aclnnLater", emu::TaskKind::kOperator, [&ran] { ran = true; }, {}});
  FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_RT_AICORE_EXCEPTION, "made to fail");
  CHECK(!ran);
  // It sticks, on every stream of the device and for copies, and on no other device.
  FAILS(aclrtSynchronizeStream(other), ACL_ERROR_RT_AICORE_EXCEPTION, "aclnnFailing");
  FAILS(aclrtRecordEvent(event, other), ACL_ERROR_RT_AICORE_EXCEPTION, "aclnnFailing");
  FAILS(emu::submit(other, {"aclnnX", emu::TaskKind::kOperator, [] {}, {}}),
        ACL_ERROR_RT_AICORE_EXCEPTION, "aclnnFailing");
  OK(aclrtSetDevice(0));
  OK(aclrtSynchronizeDevice());
  OK(aclrtResetDevice(1));
  OK(aclrtSetDevice(1));
  OK(aclrtRecordEvent(event, other));
  OK(aclrtSynchronizeEvent(event));
  OK(aclrtDestroyEvent(event));
  OK(aclrtDestroyStream(stream));
  OK(aclrtDestroyStream(other));
  OK(aclrtSetDevice(0));
}

void schedule_is_a_function_of_its_seed() {
  int delayed = 0;
  for (uint64_t task = 0; task < 4096; ++task) {
    uint32_t us = emu::delay_us(1, 0, 3, task);
    CHECK(us == emu::delay_us(1, 0, 3, task));
    CHECK(us <= 4000);
    delayed += us != 0;
  }
  CHECK(delayed > 180 && delayed < 340);  // about 1 in 16
  int differ = 0;
  for (uint64_t task = 0; task < 256; ++task) {
    differ += emu::delay_us(1, 0, 3, task) != emu::delay_us(2, 0, 3, task);
    differ += emu::delay_us(1, 0, 3, task) != emu::delay_us(1, 0, 4, task);
  }
  CHECK(differ > 20);
}

void all() {
  uint32_t count = 0;
  OK(aclrtGetDeviceCount(&count));
  CHECK(count == 2);
  int32_t id = 0;
  FAILS(aclrtGetDevice(&id), ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice");
  aclrtStream stream = nullptr;
  FAILS(aclrtCreateStream(&stream), ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice");
  FAILS(aclrtSetDevice(2), ACL_ERROR_RT_INVALID_DEVICEID, "no device 2");
  OK(aclrtSetDevice(0));
  handles();
  ordering();
  events();
  threads();
  callbacks();
  values();
  memory();
  virtual_memory();
  steps();
  failure();
  schedule_is_a_function_of_its_seed();
}

// Leaves with a task that computes, one that waits for ever, and many that never get their turn.
void busy_exit() {
  OK(aclrtSetDevice(0));
  aclrtEvent never = nullptr;
  OK(aclrtCreateEventWithFlag(&never, ACL_EVENT_EXTERNAL));
  aclrtStream waiting = make_stream();
  aclrtStream computing = make_stream();
  OK(aclrtStreamWaitEvent(waiting, never));
  run(computing, [] { sleep_ms(200); });
  for (int i = 0; i < 1000; ++i) {
    run(waiting, [] { std::abort(); });
    run(computing, [] { sleep_ms(1000); });
  }
}

void poison() {
  OK(aclrtSetDevice(0));
  aclrtStream stream = make_stream();
  emu::poison("first reason");
  emu::poison("second reason");
  FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_INTERNAL_ERROR, "first reason");
  FAILS(emu::submit(stream, {"aclnnX", emu::TaskKind::kOperator, [] {}, {}}),
        ACL_ERROR_INTERNAL_ERROR, "first reason");
  OK(aclrtResetDevice(0));
  OK(aclrtSetDevice(0));
  FAILS(aclrtSynchronizeDevice(), ACL_ERROR_INTERNAL_ERROR, "first reason");
}

void forked() {
  // Counting devices is no use of them: this child is on its own.
  uint32_t count = 0;
  OK(aclrtGetDeviceCount(&count));
  auto child_of = [](auto body) {
    pid_t pid = fork();
    if (pid == 0) {
      body();
      std::exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  };
  child_of([] {
    OK(aclrtSetDevice(0));
    OK(aclrtSynchronizeDevice());
  });
  OK(aclrtSetDevice(0));
  aclrtStream stream = make_stream();
  run(stream, [] { sleep_ms(100); });
  child_of([stream] {
    FAILS(aclrtSynchronizeStream(stream), ACL_ERROR_RT_CONTEXT_NULL, "forked");
    FAILS(aclrtSetDevice(0), ACL_ERROR_RT_CONTEXT_NULL, "spawn");
    FAILS(emu::submit(stream, {"aclnnX", emu::TaskKind::kOperator, [] {}, {}}),
          ACL_ERROR_RT_CONTEXT_NULL, "forked");
  });
  OK(aclrtSynchronizeStream(stream));
  OK(aclrtDestroyStream(stream));
}

}  // namespace

int main(int count, char** arguments) {
  std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "all") {
    all();
  } else if (mode == "busy_exit") {
    busy_exit();
  } else if (mode == "poison") {
    poison();
  } else if (mode == "forked") {
    forked();
  } else {
    std::fprintf(stderr, "usage: runtime_test all|busy_exit|poison|forked\n");
    return 2;
  }
  std::printf("%s: passed\n", mode.c_str());
  return 0;
}
