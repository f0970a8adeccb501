// SPDX-License-Identifier: Apache-2.0
// The last accesses to each byte of memory, and which of them a new access is not ordered after.
// Knows epochs and clocks, not streams. Not thread safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "checker/clock.h"
#include "checker/operation.h"

namespace emu::check {

struct Access {
  Epoch epoch;
  OperationPtr operation;  // null where nobody did: such an epoch every clock covers
  uint64_t replay = 0;     // of its graph, where it was part of one
  bool is_write = false;
};

class Shadow {
 public:
  // Called for each earlier access that conflicts with the new one and is not ordered before it,
  // with the bytes concerned.
  using Conflict = std::function<void(const Access& earlier, uintptr_t begin, uintptr_t end)>;

  // Notes `access` to [begin, end) by somebody whose clock is `clock`.
  void touch(uintptr_t begin, uintptr_t end, const Access& access, const Clock& clock,
             const Conflict& conflict);

  // Each access to [begin, end) that `clock` does not cover.
  void for_each_uncovered(uintptr_t begin, uintptr_t end, const Clock& clock,
                          const Conflict& visit) const;

  // The bytes belong to nobody any more: what was done to them says nothing about what comes.
  void forget(uintptr_t begin, uintptr_t end);

  void clear() { cells_.clear(); }

 private:
  struct Cell {
    uintptr_t end;
    Access write;
    std::vector<Access> reads;  // one for each agent, since the last write
  };
  using Cells = std::map<uintptr_t, Cell>;

  // Makes `at` a border between cells, if one lies across it.
  void split(uintptr_t at);

  Cells cells_;
};

}  // namespace emu::check
