// SPDX-License-Identifier: Apache-2.0
// Vector clocks. An agent does things one after the other: the host, or a stream. An epoch is one
// thing that an agent did; a clock says up to which epoch of each agent somebody comes after.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu::check {

using Agent = uint32_t;

// All host threads of the process. They are one agent: what they tell each other (queues, locks,
// the interpreter) is not seen here, so that an order between two of them is taken for granted.
inline constexpr Agent kHost = 0;

struct Epoch {
  Agent agent = kHost;
  uint32_t count = 0;  // 0: nothing yet, which everything comes after
};

class Clock {
 public:
  uint32_t of(Agent agent) const { return agent < counts_.size() ? counts_[agent] : 0; }

  bool covers(Epoch epoch) const { return of(epoch.agent) >= epoch.count; }

  Epoch tick(Agent agent) {
    if (agent >= counts_.size()) counts_.resize(agent + 1, 0);
    return {agent, ++counts_[agent]};
  }

  void join(const Clock& other) {
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size(), 0);
    for (size_t i = 0; i < other.counts_.size(); ++i) {
      counts_[i] = std::max(counts_[i], other.counts_[i]);
    }
  }

 private:
  std::vector<uint32_t> counts_;
};

}  // namespace emu::check
