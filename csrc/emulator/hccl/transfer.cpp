// SPDX-License-Identifier: Apache-2.0
#include "hccl/transfer.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "hccl/data_type.h"

namespace emu::hccl {
namespace {

std::string text_of(const Message& message) {
  return std::string(name_of(message.type)) + " [" + std::to_string(message.count) + "] " +
         (message.is_send ? "to" : "from") + " rank " + std::to_string(message.peer);
}

// The messages in one direction between this rank and another.
class Queue {
 public:
  Queue(Communicator& communicator, bool is_send, uint32_t peer)
      : communicator_(communicator),
        is_send_(is_send),
        peer_(peer),
        from_(is_send ? communicator.rank() : peer),
        to_(is_send ? peer : communicator.rank()),
        channel_(communicator.segment().channel(from_, to_)) {}

  void add(const Message& message) { messages_.push_back(message); }
  bool is_empty() const { return messages_.empty(); }
  uint32_t peer() const { return peer_; }
  const Message& first() const { return messages_.front(); }

  // Does what can be done without waiting; whether that was anything.
  bool advance() {
    bool has_moved = false;
    while (!messages_.empty() && (is_send_ ? put() : take())) has_moved = true;
    return has_moved;
  }

 private:
  uint32_t written() const { return channel_.written.load(std::memory_order_acquire); }
  uint32_t taken() const { return channel_.taken.load(std::memory_order_acquire); }
  uint64_t bytes() const { return first().count * element_bytes(first().type); }

  bool put() {
    const uint32_t in_flight = written() - taken();
    if (is_begun_ && passed_ == bytes()) {
      if (in_flight) return false;
      end_message();
      return true;
    }
    if (in_flight == kSlots) return false;
    const uint32_t index = written() % kSlots;
    const uint64_t part = std::min<uint64_t>(kPieceBytes, bytes() - passed_);
    channel_.piece[index] = {part, bytes(), first().count, static_cast<uint32_t>(first().type),
                             !is_begun_};
    if (part) {
      std::memcpy(communicator_.segment().piece(from_, to_, index), first().buffer + passed_, part);
    }
    if (is_checking() && !is_begun_) communicator_.segment().order(from_, to_, index).write();
    passed_ += part;
    is_begun_ = true;
    tell(channel_.written);
    return true;
  }

  bool take() {
    if (written() == taken()) return false;
    const uint32_t index = taken() % kSlots;
    const Channel::Piece piece = channel_.piece[index];
    if (!is_begun_) {
      compare(piece);
      if (is_checking()) communicator_.segment().order(from_, to_, index).read();
    }
    if (piece.bytes) {
      std::memcpy(first().buffer + passed_, communicator_.segment().piece(from_, to_, index),
                  piece.bytes);
    }
    passed_ += piece.bytes;
    is_begun_ = true;
    tell(channel_.taken);
    if (passed_ == bytes()) end_message();
    return true;
  }

  void compare(const Channel::Piece& piece) {
    const Message& message = first();
    auto refuse = [&](const char* parameter, const std::string& here, const std::string& there) {
      communicator_.fail_on_device(HCCL_E_PARA, ACL_ERROR_RT_FFTS_PLUS_EXCEPTION,
                                   "EI0005: a message from rank " + std::to_string(peer_) +
                                       ": the ranks do not mean the " + "same: " + parameter +
                                       " is " + here + " on " + communicator_.describe() +
                                       ", which receives, and " + there + " on rank " +
                                       std::to_string(peer_) + ", which sends");
    };
    if (piece.type != static_cast<uint32_t>(message.type)) {
      refuse("dataType", name_of(message.type), name_of(static_cast<HcclDataType>(piece.type)));
    }
    if (piece.count != message.count) {
      refuse("count", std::to_string(message.count), std::to_string(piece.count));
    }
  }

  void end_message() {
    messages_.pop_front();
    passed_ = 0;
    is_begun_ = false;
  }

  void tell(Word& counter) {
    counter.fetch_add(1, std::memory_order_release);
    Word& mail = communicator_.segment().cell(peer_).mail;
    mail.fetch_add(1, std::memory_order_release);
    wake(mail);
  }

  Communicator& communicator_;
  const bool is_send_;
  const uint32_t peer_, from_, to_;
  Channel& channel_;
  std::deque<Message> messages_;
  uint64_t passed_ = 0;    // bytes of the first message
  bool is_begun_ = false;  // a piece of it has passed
};

}  // namespace

void transfer(Communicator& communicator, Operation operation, std::vector<Message> messages) {
  std::map<size_t, Queue> queues;  // by turn
  std::vector<size_t> turns;
  for (const Message& message : messages) {
    size_t turn = message.is_send ? Communicator::sends_to(message.peer)
                                  : Communicator::receives_from(message.peer);
    auto [queue, is_new] = queues.try_emplace(turn, communicator, message.is_send, message.peer);
    queue->second.add(message);
    if (is_new) turns.push_back(turn);
  }
  Communicator::Turn turn(communicator, turns);
  communicator.require_usable();
  communicator.cell().current_operation = static_cast<uint32_t>(operation);

  struct Interruption {
    Communicator& communicator;
    bool is_done = false;
    ~Interruption() {
      if (!is_done) communicator.set_failed(HCCL_E_INTERNAL, "a message was interrupted");
    }
  } interruption{communicator};

  auto last_move = std::chrono::steady_clock::now();
  Word& mail = communicator.cell().mail;
  for (;;) {
    const uint32_t seen = mail.load(std::memory_order_acquire);
    bool has_moved = false;
    for (auto& [key, queue] : queues) has_moved |= queue.advance();
    std::erase_if(queues, [](const auto& each) { return each.second.is_empty(); });
    if (queues.empty()) break;
    if (has_moved) {
      last_move = std::chrono::steady_clock::now();
      continue;
    }
    std::string name = name_of(operation);
    for (const auto& [key, queue] : queues) name += ", " + text_of(queue.first());
    communicator.wait(
        mail, name, last_move, [&] { return mail.load(std::memory_order_acquire) != seen; },
        [&] {
          std::vector<uint32_t> peers;
          for (const auto& [key, queue] : queues) peers.push_back(queue.peer());
          return peers;
        });
  }
  interruption.is_done = true;
}

}  // namespace emu::hccl
