// SPDX-License-Identifier: Apache-2.0
// Deadlocks: every stream that has work waits for something, nobody submits anything, and a host
// thread waits for one of them. Seen by a thread that looks now and then. A stream that waits for
// other ranks is part of it only if they say of themselves that nothing moves there either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "checker/operation.h"

namespace emu::check {

// Something moved.
void moved();

// On a stream's worker: what it does. `operation` may be null.
void worker_runs(int32_t stream, const OperationPtr& operation);
void worker_waits(int32_t stream, const std::string& what);
// Likewise, for other ranks of a communicator on `device`. Null when it does not any more.
struct Peers {
  int device;
  std::function<bool()> are_stalled;
  std::function<void(bool)> tell;
};
void worker_waits_for_peers(int32_t stream, std::unique_ptr<const Peers> peers);
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
