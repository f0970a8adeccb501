// SPDX-License-Identifier: Apache-2.0
// The life of the process: first use, fork, exit. And the scope object that every API function
// opens, which refuses a forked child and times the call for the trace.
#pragma once

#include <cstdint>

#include "runtime/api.h"

namespace emu {

// Called where a device is really used (not where devices are only counted). From here on a
// forked child cannot use the device, and exit has work to do.
void mark_in_use();
bool in_use();

// For a thread of the emulator: it wakes from a sleep when it asked to, and not a millisecond later
// like the threads that torch_npu makes.
void be_punctual();

// True in a child forked after first use: worker threads do not exist there and locks may be
// held for ever, so that nothing but failing is safe.
bool forked_child();
aclError fail_forked(const char* api);

// True once exit handlers run: tasks that wait give up, tasks in queues are dropped.
bool exiting();

// The default device that aclInit's configuration names (torch_npu's does), or -1.
int default_device();

class ApiScope {
 public:
  explicit ApiScope(const char* name);
  ~ApiScope();
  ApiScope(const ApiScope&) = delete;
  ApiScope& operator=(const ApiScope&) = delete;

 private:
  const char* name_;
  int64_t start_ns_;
};

}  // namespace emu

// First statement of an API function that returns aclError.
#define EMU_ENTER()                       \
  if (::emu::forked_child()) [[unlikely]] \
    return ::emu::fail_forked(__func__);  \
  ::emu::ApiScope emu_api_scope(__func__)
