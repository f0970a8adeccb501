// SPDX-License-Identifier: Apache-2.0
#include "hccl/exchange.h"

#include <algorithm>

#include "hccl/data_type.h"

namespace emu::hccl {
namespace {

// What CANN's collectives end with where their tasks fail.
constexpr aclError kInconsistent = ACL_ERROR_RT_FFTS_PLUS_EXCEPTION;

std::string text_of(const Statement& statement) {
  std::string text = name_of(statement.operation);
  if (statement.operation == Operation::kBarrier) return text;
  text += std::string(" of ") + name_of(static_cast<HcclDataType>(statement.type));
  if (statement.count) text += " [" + std::to_string(statement.count) + "]";
  return text;
}

// Rounds and pieces are counted modulo 2^32.
bool is_reached(const Word& word, uint32_t target) {
  return static_cast<int32_t>(word.load(std::memory_order_acquire) - target) >= 0;
}

}  // namespace

Exchange::Exchange(Communicator& communicator, const Statement& statement,
                   std::vector<uint64_t> counts)
    : communicator_(communicator),
      statement_(statement),
      counts_(std::move(counts)),
      turn_(communicator, {Communicator::kCollectives}) {
  communicator_.require_usable();
  RankCell& cell = communicator_.cell();
  uint64_t number = ++cell.collectives;
  cell.current_operation = static_cast<uint32_t>(statement.operation);
  name_ = text_of(statement_) + ", collective " + std::to_string(number);
}

Exchange::~Exchange() {
  // Whoever leaves in the middle of a round (torn down, or failed) has broken the sequence.
  if (!is_done_) communicator_.set_failed(HCCL_E_INTERNAL, name_ + " was interrupted");
}

void Exchange::begin_round() {
  slot_ = communicator_.rounds % kSlots;
  ++communicator_.rounds;
  is_done_ = false;
}

void Exchange::meet() {
  RankCell& cell = communicator_.cell();
  cell.statement[slot_] = statement_;
  std::copy(counts_.begin(), counts_.end(), cell.counts[slot_]);
  const bool is_ordering = is_checking() && is_first_;
  if (is_ordering) communicator_.segment().order(rank(), slot_).write();
  const uint32_t round = communicator_.rounds;
  cell.open_round.store(round, std::memory_order_relaxed);
  cell.arrived.store(round, std::memory_order_release);
  wake(cell.arrived);
  const auto begin = std::chrono::steady_clock::now();
  for (uint32_t other = 0; other < ranks(); ++other) {
    Word& arrived = communicator_.segment().cell(other).arrived;
    communicator_.wait(
        arrived, name_, begin, [&] { return is_reached(arrived, round); },
        [&] {
          std::vector<uint32_t> missing;
          for (uint32_t each = 0; each < ranks(); ++each) {
            if (!is_reached(communicator_.segment().cell(each).arrived, round)) {
              missing.push_back(each);
            }
          }
          return missing;
        });
  }
  compare();
  for (uint32_t other = 0; other < ranks(); ++other) {
    if (communicator_.segment().cell(other).open_round.load(std::memory_order_acquire) == round) {
      communicator_.require_not_failed(other, name_);
    }
  }
  cell.open_round.store(0, std::memory_order_release);
  for (uint32_t other = 0; other < ranks() && is_ordering; ++other) {
    if (hears_from(other)) communicator_.segment().order(other, slot_).read();
  }
  is_first_ = false;
  is_done_ = true;
}

// Whether the result here depends on what `other` gave.
bool Exchange::hears_from(uint32_t other) const {
  switch (statement_.operation) {
    case Operation::kBroadcast:
    case Operation::kScatter:
      return other == statement_.root;
    case Operation::kReduce:
      return rank() == statement_.root;
    default:
      return true;
  }
}

void Exchange::compare() {
  const Statement& here = statement_;
  for (uint32_t other = 0; other < ranks(); ++other) {
    const Statement& there = communicator_.segment().cell(other).statement[slot_];
    auto type = [](const Statement& s) { return name_of(static_cast<HcclDataType>(s.type)); };
    auto reduce = [](const Statement& s) { return name_of(static_cast<HcclReduceOp>(s.reduce)); };
    if (here.operation != there.operation) {
      refuse("operation", name_of(here.operation), name_of(there.operation), other);
    }
    if (here.type != there.type) refuse("dataType", type(here), type(there), other);
    if (here.reduce != there.reduce) refuse("reduce op", reduce(here), reduce(there), other);
    if (here.root != there.root) {
      refuse("root", std::to_string(here.root), std::to_string(there.root), other);
    }
    if (here.count != there.count) {
      refuse("count", std::to_string(here.count), std::to_string(there.count), other);
    }
  }
}

void Exchange::refuse(const std::string& parameter, const std::string& here,
                      const std::string& there, uint32_t other) {
  communicator_.fail_on_device(HCCL_E_PARA, kInconsistent,
                               "EI0005: " + name_ + ": the ranks do not ask for the same: " +
                                   parameter + " is " + here + " on " + communicator_.describe() +
                                   " and " + there + " on rank " + std::to_string(other));
}

}  // namespace emu::hccl
