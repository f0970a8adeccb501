// SPDX-License-Identifier: Apache-2.0
#include "hccl/liveness.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace emu::hccl {

Liveness::Liveness(Segment& segment) {
  for (uint32_t rank = 0; rank < segment.ranks(); ++rank) {
    pid_t process = segment.cell(rank).process;
    if (process == getpid() || processes_.contains(process)) continue;
    // Stands for this very process, whoever has its number later.
    processes_.emplace(process,
                       FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0))));
  }
}

bool Liveness::has_ended(pid_t process) const {
  auto found = processes_.find(process);
  if (found == processes_.end()) return false;
  if (!found->second) return kill(process, 0) && errno == ESRCH;
  pollfd watched{found->second.get(), POLLIN, 0};
  return poll(&watched, 1, 0) > 0;
}

}  // namespace emu::hccl
