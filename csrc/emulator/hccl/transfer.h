// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another. As on hardware a send ends when its receiver has taken all of
// it: two ranks that both send first wait for each other.
#pragma once

#include <cstdint>
#include <vector>

#include "hccl/communicator.h"

namespace emu::hccl {

struct Message {
  bool is_send;
  char* buffer;
  uint64_t count;
  HcclDataType type;
  uint32_t peer;
};

// From a task's body: passes all `messages`, those to or from one rank in order and all others side
// by side, so that their order among each other cannot matter. Throws DeviceError where two ranks
// do not mean the same message, and as Communicator::wait() does.
void transfer(Communicator& communicator, Operation operation, std::vector<Message> messages);

}  // namespace emu::hccl
