// SPDX-License-Identifier: Apache-2.0
// One rank's side of a communicator: who it is, whether it has failed, and how it waits for
// others. What it says to them is exchange.h's and transfer.h's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hccl/liveness.h"
#include "hccl/rendezvous.h"
#include "hccl/segment.h"
#include "runtime/api.h"
#include "runtime/handles.h"

namespace emu::hccl {

class Communicator {
 public:
  struct Identity {
    std::string name;
    uint32_t rank;
    int device;           // index in this process
    std::string address;  // where sub-communicators meet
    std::string key;
    std::optional<std::chrono::seconds> exec_timeout;
  };

  Communicator(Identity identity, std::shared_ptr<Segment> segment);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Identity& identity() const { return identity_; }
  uint32_t rank() const { return identity_.rank; }
  uint32_t ranks() const { return segment_->ranks(); }
  Segment& segment() { return *segment_; }
  RankCell& cell() { return segment_->cell(rank()); }

  // This rank takes no part any more; the others learn it when they wait for it.
  void leave();
  // Likewise, because it failed. The first reason stays.
  void set_failed(HcclResult result, const std::string& why);
  HcclResult async_error(std::string* why) const;

  // From a task's body. Waits until `reached()` is true; whoever makes it so changes `word` and
  // wakes it. Throws DeviceError if nothing has moved for too long `since` then or if one of the
  // ranks that `missing()` names has gone, and TaskInterrupted as every task does. `operation` is
  // for the message.
  using Time = std::chrono::steady_clock::time_point;
  void wait(Word& word, const std::string& operation, Time since,
            const std::function<bool()>& reached,
            const std::function<std::vector<uint32_t>()>& missing);

  // Throws DeviceError if this rank has failed, or fails this one because another has.
  void require_usable();
  void require_not_failed(uint32_t other, const std::string& operation);

  // Fails this rank and throws the DeviceError that its stream ends with.
  [[noreturn]] void fail_on_device(HcclResult result, aclError code, const std::string& why);

  // Collectives of a rank are one at a time, from whichever streams; so are messages to one rank,
  // and messages from one. Waiting for a turn ends as wait() does.
  class Turn {
   public:
    Turn(Communicator& communicator, std::vector<size_t> of);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Communicator& communicator_;
    const std::vector<size_t> of_;
  };
  // Stands for a turn, for the order checker.
  const void* turn(size_t of) const { return &names_of_turns_[of]; }
  static constexpr size_t kCollectives = 0;
  static size_t sends_to(uint32_t rank) { return 1 + 2 * size_t{rank}; }
  static size_t receives_from(uint32_t rank) { return 2 + 2 * size_t{rank}; }

  uint32_t rounds = 0;  // that this rank has begun; with the turn of collectives

  // "rank 0 of 2 of communicator 'name'"
  std::string describe() const;

 private:
  std::string describe_missing(const std::vector<uint32_t>& ranks);
  // Throws if one of `ranks` will never come.
  void look_after(const std::vector<uint32_t>& ranks, const std::string& operation,
                  bool look_at_processes, const std::function<bool()>& reached);

  const Identity identity_;
  const std::shared_ptr<Segment> segment_;
  const Liveness liveness_;
  mutable std::mutex mutex_;
  HcclResult async_error_ = HCCL_SUCCESS;
  std::string why_failed_;
  std::condition_variable turn_ended_;
  std::vector<bool> taken_;  // turns
  const std::vector<char> names_of_turns_;
};

HandleTable<Communicator>& communicators();

// Wakes all who wait for a change of `word`.
void wake(Word& word);

}  // namespace emu::hccl
