// SPDX-License-Identifier: Apache-2.0
// The rounds of one collective: every rank publishes, all meet, all read what others published.
#pragma once

#include <string>
#include <vector>

#include "hccl/communicator.h"

namespace emu::hccl {

class Exchange {
 public:
  // On a stream's worker. Waits for this rank's turn.
  Exchange(Communicator& communicator, const Statement& statement,
           std::vector<uint64_t> counts = {});
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  uint32_t rank() const { return communicator_.rank(); }
  uint32_t ranks() const { return communicator_.ranks(); }

  // Begins a round: from here on mine() may be written.
  void begin_round();
  // Ends it when all have published; then of(rank) may be read until the next but one begins.
  // Throws DeviceError where the ranks do not say the same, and as Communicator::wait() does.
  void meet();

  char* mine() { return of(rank()); }
  char* of(uint32_t rank) { return communicator_.segment().slot(rank, slot_); }
  // The counts that a rank gave, after the first round has met.
  uint64_t count_of(uint32_t rank, uint32_t index) {
    return communicator_.segment().cell(rank).counts[slot_][index];
  }

  // Fails with what is inconsistent: "EI0005: ...".
  [[noreturn]] void refuse(const std::string& parameter, const std::string& here,
                           const std::string& there, uint32_t other);

 private:
  void compare();
  bool hears_from(uint32_t other) const;

  Communicator& communicator_;
  const Statement statement_;
  const std::vector<uint64_t> counts_;
  const Communicator::Turn turn_;
  std::string name_;
  size_t slot_ = 0;
  bool is_first_ = true;  // round
  bool is_done_ = true;   // no round is open
};

}  // namespace emu::hccl
