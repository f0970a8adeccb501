// SPDX-License-Identifier: Apache-2.0
// Faults on demand (ASCEND_EMU_INJECT), so that what a program does about them can be tested:
//
//   stuck:NAME:N   the N-th task NAME that runs never ends (until its stream is torn down)
//   error:NAME:N   the N-th task NAME that runs fails, as an AI Core exception does
//   oom:NAME:N     from the N-th task NAME that runs on, no device memory can be allocated
//   lost:NAME:N    the process is killed (SIGKILL) when the N-th task NAME begins
//
// Several, with commas between. NAME is an operator (aclnnMatmul), a copy (memcpy_h2d), a
// collective (HcclAllReduce) or graph_replay; tasks in graphs count whenever they run.
#pragma once

#include "runtime/api.h"

namespace emu {

// On a worker, before the task's body. Throws for a fault that is the task's.
void inject_into(const Task& task);

// Whether an allocation of device memory fails by injection.
bool allocations_fail();

}  // namespace emu
