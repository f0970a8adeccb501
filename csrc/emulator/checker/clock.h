// SPDX-License-Identifier: Apache-2.0
// Vector clocks. An agent does things one after the other: the host, or a stream. An epoch is one
// thing that an agent did; a clock says up to which epoch of each agent somebody comes after. What
// the agents of other processes did comes with collectives and is only ever handed on: an order may
// lead through another rank and back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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
    join(counts_, other.counts_);
    for (const auto& [process, counts] : other.elsewhere_) join(elsewhere_[process], counts);
  }

  // For another process: this one is told apart by `own`, a number that no other has.
  std::vector<uint32_t> pack(uint64_t own) const;
  void join_packed(const uint32_t* packed, size_t words, uint64_t own);

 private:
  using Counts = std::vector<uint32_t>;

  static void join(Counts& counts, const Counts& other) {
    if (other.size() > counts.size()) counts.resize(other.size(), 0);
    for (size_t i = 0; i < other.size(); ++i) counts[i] = std::max(counts[i], other[i]);
  }

  Counts counts_;
  std::map<uint64_t, Counts> elsewhere_;  // by process
};

}  // namespace emu::check
