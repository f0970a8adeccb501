// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one communicator share, be they processes or threads, and the
// meaning of its words. It is an anonymous file that the ranks hand to each other: it has no name,
// so that nothing of it outlives the last of them, however that one ends. Waiting is wait.h's.
//
// Collectives go in rounds. A rank writes what it has to say into its slot of the round, and then
// counts `arrived` up; when all have, all read. Rounds have two slots in turn, and that is enough:
// who has seen everybody arrive at a round knows that everybody has read the one before the last.
// A message from one rank to another goes through the channel of the two, piece by piece.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "hccl/file_descriptor.h"
#include "hccl/hccl.h"

namespace emu::hccl {

inline constexpr uint32_t kMaxRanks = 64;
inline constexpr size_t kSlotBytes = size_t{1} << 20;
inline constexpr size_t kPieceBytes = size_t{256} << 10;
inline constexpr size_t kOrderBytes = size_t{64} << 10;
inline constexpr size_t kSlots = 2;

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free);

enum class Operation : uint32_t {
  kNone,
  kAllGather,
  kAllGatherV,
  kAllReduce,
  kAllToAll,
  kAllToAllV,
  kAllToAllVC,
  kBarrier,
  kBatchSendReceive,
  kBroadcast,
  kReceive,
  kReduce,
  kReduceScatter,
  kReduceScatterV,
  kScatter,
  kSend,
};
// As the function of the ABI is called.
const char* name_of(Operation operation);

// What a rank says that it does. All ranks of a collective must say the same; a field without a
// meaning for an operation, or with another for each rank, is 0.
struct Statement {
  Operation operation = Operation::kNone;
  uint32_t type = 0;    // HcclDataType
  uint32_t reduce = 0;  // HcclReduceOp
  uint32_t root = 0;
  uint64_t count = 0;  // elements
};

// For the order checker: what a stream had done when it wrote this. No words where there is none.
struct Order {
  uint32_t count;
  uint32_t words[kOrderBytes / sizeof(uint32_t)];

  void write();
  void read() const;
};

struct alignas(64) RankCell {
  enum State : uint32_t { kMember, kLeft, kFailed };

  Word state;
  int32_t process;  // id
  int32_t device;   // physical id
  // Rounds of collectives, modulo 2^32. Waited on by those who need this rank.
  Word arrived;
  // The round that this rank waits in, 0 if it is in none: where it failed, that one never ended.
  Word open_round;
  // Changes of channels from or to this rank, whose worker waits on it.
  Word mail;
  // Of the order checker: nothing moves on this rank's device, and its host waits for it.
  Word stalled;
  // What it is in now or was in last, and the how manieth collective that is, for messages only.
  Word current_operation;
  std::atomic<uint64_t> collectives;
  char failure[384];  // written before kFailed
  Statement statement[kSlots];
  uint64_t counts[kSlots][kMaxRanks];  // elements for each rank, where they differ
};

struct alignas(64) Channel {
  struct Piece {
    uint64_t bytes;          // of this piece
    uint64_t message_bytes;  // of all of the message
    uint64_t count;          // elements of the message
    uint32_t type;
    uint32_t is_first;
  };

  Word written;  // pieces, modulo 2^32
  Word taken;
  Piece piece[kSlots];
};

class Segment {
 public:
  // Null (errno set) if there is no memory.
  static std::shared_ptr<Segment> create(uint32_t ranks);
  static std::shared_ptr<Segment> open(FileDescriptor file, uint32_t ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int file() const { return file_.get(); }
  uint32_t ranks() const { return ranks_; }

  RankCell& cell(uint32_t rank) { return *at<RankCell>(rank * sizeof(RankCell)); }
  Channel& channel(uint32_t from, uint32_t to) {
    return *at<Channel>(channels_ + pair(from, to) * sizeof(Channel));
  }
  // Data of a round, and of a channel's piece.
  char* slot(uint32_t rank, size_t index) {
    return at<char>(slots_ + (rank * kSlots + index) * kSlotBytes);
  }
  char* piece(uint32_t from, uint32_t to, size_t index) {
    return at<char>(pieces_ + (pair(from, to) * kSlots + index) * kPieceBytes);
  }
  Order& order(uint32_t rank, size_t index) {
    return *at<Order>(orders_ + (rank * kSlots + index) * sizeof(Order));
  }
  Order& order(uint32_t from, uint32_t to, size_t index) {
    return *at<Order>(piece_orders_ + (pair(from, to) * kSlots + index) * sizeof(Order));
  }

 private:
  Segment(FileDescriptor file, uint32_t ranks);

  size_t pair(uint32_t from, uint32_t to) const { return size_t{from} * ranks_ + to; }
  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(base_ + offset);
  }

  FileDescriptor file_;
  const uint32_t ranks_;
  size_t channels_ = 0, slots_ = 0, pieces_ = 0, orders_ = 0, piece_orders_ = 0, bytes_ = 0;
  char* base_ = nullptr;
};

}  // namespace emu::hccl
