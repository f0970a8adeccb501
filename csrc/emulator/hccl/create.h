// SPDX-License-Identifier: Apache-2.0
// One rank's way into a communicator: its arguments, the rendezvous, the handle.
#pragma once

#include "hccl/communicator.h"
#include "hccl/rendezvous.h"

namespace emu::hccl {

// Waits until all ranks of the party are there. The device is the calling thread's, whatever the
// party says. `config` may be null. Sets the message of what it returns.
HcclResult create(const char* api, Party party, const HcclCommConfig* config,
                  HcclComm* communicator);

}  // namespace emu::hccl
