// SPDX-License-Identifier: Apache-2.0
// Deadlocks: every stream that has work waits for something, nobody submits anything, and a host
// thread waits for one of them. Seen by a thread that looks now and then.
#pragma once

#include <cstdint>
#include <string>

#include "checker/operation.h"

namespace emu::check {

// Something moved.
void moved();

// On a stream's worker: what it does. `operation` may be null.
void worker_runs(int32_t stream, const OperationPtr& operation);
void worker_waits(int32_t stream, const std::string& what);
void worker_is_idle(int32_t stream);

// A host thread waits for the device, from construction to destruction.
class HostWaits {
 public:
  explicit HostWaits(const char* api);
  ~HostWaits();
  HostWaits(const HostWaits&) = delete;
  HostWaits& operator=(const HostWaits&) = delete;

 private:
  uint64_t id_ = 0;
};

}  // namespace emu::check
