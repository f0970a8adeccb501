// SPDX-License-Identifier: Apache-2.0
// What the checker remembers of one thing that was asked for, to order it and to name it in a
// report. Made when it is submitted; constant from then on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checker/clock.h"
#include "checker/python_stack.h"
#include "runtime/api.h"

namespace emu::check {

struct Operation {
  const char* name;
  TaskKind kind;
  int device;
  int32_t stream;      // -1: the host itself
  uint64_t number;     // of submission, in this process
  std::string thread;  // that submitted it
  StackId stack;
  Clock host;  // when it was submitted: it comes after all that the host knew then
  std::vector<ByteRange> accesses;
  std::vector<const void*> in_turn;
  bool is_captured;
};

using OperationPtr = std::shared_ptr<const Operation>;

}  // namespace emu::check
