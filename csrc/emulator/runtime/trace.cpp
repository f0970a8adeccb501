// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

#include "runtime/config.h"
#include "runtime/output_file.h"

namespace emu {
namespace {

// A track is a device's stream, or a host thread where device is -1.
struct Span {
  const char* name;
  int device;
  int32_t track;
  int64_t start_ns;
  int64_t end_ns;
};

// 48 MB of spans; a longer run keeps its beginning, and the file says so.
constexpr size_t kMaximumSpans = 1'500'000;

struct Log {
  std::mutex mutex;
  std::vector<Span> spans;
  size_t lost = 0;
};

Log& log() {
  static Log* instance = new Log;
  return *instance;
}

void add(const Span& span) {
  Log& l = log();
  std::lock_guard lock(l.mutex);
  if (l.spans.size() < kMaximumSpans) {
    l.spans.push_back(span);
  } else {
    ++l.lost;
  }
}

void write_spans(std::FILE* file) {
  Log& l = log();
  std::lock_guard lock(l.mutex);
  std::fprintf(file, "{\"traceEvents\":[\n");
  // Chrome's "process" is the host (0) or a device (1 + index); its "thread" is the track.
  std::fprintf(file,
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"host\"}}");
  for (int device = 0; device < config().devices; ++device) {
    std::fprintf(file,
                 ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":"
                 "\"npu:%d\"}}",
                 device + 1, device);
  }
  for (const Span& span : l.spans) {
    std::fprintf(file,
                 ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}",
                 span.name, span.device + 1, span.track, static_cast<double>(span.start_ns) / 1e3,
                 static_cast<double>(span.end_ns - span.start_ns) / 1e3);
  }
  std::fprintf(file, "\n],\"displayTimeUnit\":\"ms\",\"lostSpans\":%zu}\n", l.lost);
}

}  // namespace

bool tracing() {
  static const bool on = config().trace_path.has_value();
  return on;
}

int64_t trace_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void trace_host_call(const char* name, int64_t start_ns, int64_t end_ns) {
  add({name, -1, static_cast<int32_t>(gettid()), start_ns, end_ns});
}

TraceTask::TraceTask(int device, int32_t stream, const Task& task)
    : device_(device),
      stream_(stream),
      name_(task.name),
      start_ns_(tracing() ? trace_now_ns() : 0) {}

TraceTask::~TraceTask() {
  if (start_ns_) add({name_, device_, stream_, start_ns_, trace_now_ns()});
}

void write_trace_file() {
  if (tracing()) write_output_file("ASCEND_EMU_TRACE", *config().trace_path, write_spans);
}

}  // namespace emu
