// SPDX-License-Identifier: Apache-2.0
// Task groups: marking tasks of a capture that are to be replaced later, and replacing them. An
// update is collected between its begin and end, checked against the group, and then queued on its
// stream as one task. When that runs, the group's nodes have the new tasks: a replay that has not
// reached them yet runs those, whichever replay that is. Order is the application's business.
#pragma once

#include "runtime/graph.h"

namespace emu {

// With the capture lock: a task submitted to a stream on which an update is open.
aclError add_to_update(Stream& stream, Task& task);

}  // namespace emu
