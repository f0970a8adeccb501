// SPDX-License-Identifier: Apache-2.0
// Whether the processes of a communicator's ranks are still there.
#pragma once

#include <sys/types.h>

#include <map>

#include "hccl/file_descriptor.h"
#include "hccl/segment.h"

namespace emu::hccl {

class Liveness {
 public:
  explicit Liveness(Segment& segment);

  // Never true for the calling process. One system call.
  bool has_ended(pid_t process) const;

 private:
  std::map<pid_t, FileDescriptor> processes_;  // none for one that had ended before
};

}  // namespace emu::hccl
