// SPDX-License-Identifier: Apache-2.0
#include "runtime/process.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>

#include "checker/findings.h"
#include "checker/order.h"
#include "runtime/config.h"
#include "runtime/counters.h"
#include "runtime/error.h"
#include "runtime/guard.h"
#include "runtime/stream.h"
#include "runtime/trace.h"

namespace emu {
namespace {

// torch_npu starts a thread for each queue of its own that looks every two microseconds for
// something to release: a tenth of a core, in every process. Threads inherit from the one that
// makes them how late they may wake; here that is the thread that uses the device first.
constexpr unsigned long kPatientNs = 1'000'000;
constexpr unsigned long kPunctualNs = 50'000;  // the kernel's default

std::atomic<bool> used{false};
std::atomic<bool> is_forked_child{false};
std::atomic<bool> is_exiting{false};
std::atomic<bool> initialised{false};
std::atomic<int> default_device_id{-1};

void after_fork_in_child() {
  if (used.load()) is_forked_child.store(true);
}

// Registered at first use, thus after torch was loaded: it runs before torch's own static
// destructors, which a task that still runs must not meet.
void at_exit(int status, void*) {
  if (forked_child()) return;
  if (check::on()) finish_all_streams();  // whether a task conflicts is known when it has run
  is_exiting.store(true);
  bool all_stopped = stop_all_streams();
  write_counters_file();
  const int code = check::end_of_program(status);
  write_trace_file();
  if (!all_stopped) {
    std::fprintf(stderr,
                 "[ascend-emulator] a task did not end within the time given at exit: leaving "
                 "without the remaining exit handlers\n");
    std::fflush(nullptr);
    _exit(code);
  }
  // glibc goes on with the remaining handlers, which are given this status, and flushes.
  if (code != status) std::exit(code);
}

// The one entry of aclInit's JSON that the runtime acts on.
int read_default_device(const char* path) {
  std::ifstream file(path);
  if (!file) return -1;
  std::stringstream text;
  text << file.rdbuf();
  std::string content = text.str();
  size_t at = content.find("\"default_device\"");
  if (at == std::string::npos) return -1;
  at = content.find_first_of("0123456789", content.find(':', at));
  return at == std::string::npos ? -1 : std::atoi(content.c_str() + at);
}

}  // namespace

void be_punctual() { prctl(PR_SET_TIMERSLACK, kPunctualNs); }

void mark_in_use() {
  static std::once_flag once;
  std::call_once(once, [] {
    used.store(true);
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    on_exit(at_exit, nullptr);
    explain_guard_faults();
    prctl(PR_SET_TIMERSLACK, kPatientNs);
  });
}

bool in_use() { return used.load(std::memory_order_relaxed); }

bool forked_child() { return is_forked_child.load(std::memory_order_relaxed); }

aclError fail_forked(const char* api) {
  return fail(ACL_ERROR_RT_CONTEXT_NULL,
              std::string(api) +
                  ": this process was forked after its parent had used the device, so that the "
                  "device cannot be used here. Start worker processes with the 'spawn' method, or "
                  "fork before the first use");
}

bool exiting() { return is_exiting.load(std::memory_order_relaxed); }

int default_device() { return default_device_id.load(std::memory_order_relaxed); }

ApiScope::ApiScope(const char* name) : name_(name), start_ns_(tracing() ? trace_now_ns() : 0) {}

ApiScope::~ApiScope() {
  if (start_ns_) trace_host_call(name_, start_ns_, trace_now_ns());
}

}  // namespace emu

EMU_API aclError aclInit(const char* config_path) {
  EMU_ENTER();
  emu::config();
  if (emu::initialised.exchange(true)) {
    return emu::fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called already");
  }
  if (config_path && *config_path) {
    emu::default_device_id.store(emu::read_default_device(config_path));
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclFinalize() {
  EMU_ENTER();
  if (!emu::initialised.exchange(false)) {
    return emu::fail(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize without aclInit");
  }
  return ACL_SUCCESS;
}
