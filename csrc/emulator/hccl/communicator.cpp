// SPDX-License-Identifier: Apache-2.0
#include "hccl/communicator.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "hccl/settings.h"

namespace emu::hccl {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often a wait looks whether it should go on, and whether the processes of others are there.
constexpr milliseconds kLookEvery{20};
constexpr milliseconds kLookAtProcessesEvery{100};

// What CANN reports where a task of a collective never gets its peer's signal.
constexpr aclError kNotSignalled = ACL_ERROR_RT_FFTS_PLUS_TIMEOUT;

void sleep_on(Word& word, uint32_t seen) {
  constexpr auto kNanoseconds = std::chrono::nanoseconds(kLookEvery).count();
  timespec limit{0, kNanoseconds};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

// A device that failed runs nothing any more: those who wait for its ranks must know.
void fail_ranks_of(int device, const std::string& why) {
  for (const auto& communicator : communicators().all()) {
    if (communicator->identity().device == device) {
      communicator->set_failed(HCCL_E_RUNTIME, why);
    }
  }
}

}  // namespace

HandleTable<Communicator>& communicators() {
  static auto* table = new HandleTable<Communicator>(HandleKind::kCommunicator);
  return *table;
}

void wake(Word& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Communicator::Communicator(Identity identity, std::shared_ptr<Segment> segment)
    : identity_(std::move(identity)),
      segment_(std::move(segment)),
      liveness_(*segment_),
      taken_(1 + 2 * size_t{segment_->ranks()}, false),
      names_of_turns_(taken_.size()) {
  static std::once_flag once;
  std::call_once(once, [] { on_device_failure(fail_ranks_of); });
}

Communicator::~Communicator() { leave(); }

std::string Communicator::describe() const {
  return "rank " + std::to_string(rank()) + " of " + std::to_string(ranks()) +
         " of communicator '" + identity_.name + "'";
}

void Communicator::leave() {
  uint32_t member = RankCell::kMember;
  if (!cell().state.compare_exchange_strong(member, RankCell::kLeft)) return;
  wake(cell().arrived);
  for (uint32_t other = 0; other < ranks(); ++other) {
    segment_->cell(other).mail.fetch_add(1);
    wake(segment_->cell(other).mail);
  }
}

void Communicator::set_failed(HcclResult result, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (async_error_ != HCCL_SUCCESS) return;
    async_error_ = result;
    why_failed_ = why;
    std::strncpy(cell().failure, why.c_str(), sizeof cell().failure - 1);
    uint32_t member = RankCell::kMember;
    cell().state.compare_exchange_strong(member, RankCell::kFailed);
    turn_ended_.notify_all();
  }
  wake(cell().arrived);
  for (uint32_t other = 0; other < ranks(); ++other) {
    segment_->cell(other).mail.fetch_add(1);
    wake(segment_->cell(other).mail);
  }
}

HcclResult Communicator::async_error(std::string* why) const {
  std::lock_guard lock(mutex_);
  *why = why_failed_;
  return async_error_;
}

void Communicator::require_usable() {
  std::string why;
  if (async_error(&why) != HCCL_SUCCESS) {
    throw DeviceError(kNotSignalled, describe() + " has failed before: " + why);
  }
}

void Communicator::require_not_failed(uint32_t other, const std::string& operation) {
  RankCell& cell = segment_->cell(other);
  if (cell.state.load(std::memory_order_acquire) != RankCell::kFailed) return;
  fail_on_device(HCCL_E_REMOTE, kNotSignalled,
                 "EI0002: " + operation + ", " + describe() + ": rank " + std::to_string(other) +
                     " has failed: " + cell.failure);
}

void Communicator::fail_on_device(HcclResult result, aclError code, const std::string& why) {
  set_failed(result, why);
  throw DeviceError(code, why);
}

void Communicator::wait(Word& word, const std::string& operation, Time since,
                        const std::function<bool()>& reached,
                        const std::function<std::vector<uint32_t>()>& missing) {
  if (reached()) return;
  const auto timeout = identity_.exec_timeout;
  std::optional<WaitForPeers> waits;
  if (is_checking()) {
    waits.emplace(
        operation + ", " + describe() + ": " + describe_missing(missing()),
        [this, missing] {
          auto ranks = missing();
          return std::all_of(ranks.begin(), ranks.end(), [&](uint32_t rank) {
            return segment_->cell(rank).stalled.load(std::memory_order_acquire) != 0;
          });
        },
        [this](bool is_stalled) { cell().stalled.store(is_stalled, std::memory_order_release); });
  }
  Time look_next{};
  Time look_at_processes_next{};
  for (;;) {
    uint32_t seen = word.load(std::memory_order_acquire);
    if (reached()) return;
    auto now = Clock::now();
    if (now >= look_next) {
      check_interrupted();
      bool look_at_processes = now >= look_at_processes_next;
      look_after(missing(), operation, look_at_processes, reached);
      look_next = now + kLookEvery;
      if (look_at_processes) look_at_processes_next = now + kLookAtProcessesEvery;
      if (timeout && now - since >= *timeout && !reached()) {
        fail_on_device(
            HCCL_E_TIMEOUT, kNotSignalled,
            "EI0002: " + operation + ", " + describe() + ": " + std::to_string(timeout->count()) +
                " s have passed (HCCL_EXEC_TIMEOUT) without " + describe_missing(missing()));
      }
    }
    sleep_on(word, seen);
  }
}

std::string Communicator::describe_missing(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (uint32_t rank : ranks) {
    RankCell& cell = segment_->cell(rank);
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + ", which has begun " +
            std::to_string(cell.collectives.load()) + " collectives and was last in " +
            name_of(static_cast<Operation>(cell.current_operation.load()));
  }
  return text;
}

void Communicator::look_after(const std::vector<uint32_t>& ranks, const std::string& operation,
                              bool look_at_processes, const std::function<bool()>& reached) {
  for (uint32_t rank : ranks) {
    RankCell& cell = segment_->cell(rank);
    const std::string who = "rank " + std::to_string(rank);
    std::string what;
    switch (cell.state.load(std::memory_order_acquire)) {
      case RankCell::kLeft:
        what = who + " has left the communicator";
        break;
      case RankCell::kFailed:
        what = who + " has failed: " + cell.failure;
        break;
      default:
        if (look_at_processes && liveness_.has_ended(cell.process)) {
          what = "the process " + std::to_string(cell.process) + " of " + who +
                 " has ended (Heartbeat Lost Occurred)";
        }
    }
    // What it still did before it went counts.
    if (what.empty() || reached()) continue;
    fail_on_device(HCCL_E_REMOTE, kNotSignalled,
                   "EI0002: " + operation + ", " + describe() + ": " + what);
  }
}

Communicator::Turn::Turn(Communicator& communicator, std::vector<size_t> of)
    : communicator_(communicator), of_(std::move(of)) {
  std::unique_lock lock(communicator_.mutex_);
  auto is_free = [&] {
    return std::none_of(of_.begin(), of_.end(),
                        [&](size_t each) { return communicator_.taken_[each]; });
  };
  while (!is_free()) {
    lock.unlock();
    check_interrupted();
    communicator_.require_usable();
    lock.lock();
    if (!is_free()) communicator_.turn_ended_.wait_for(lock, kLookEvery);
  }
  for (size_t each : of_) communicator_.taken_[each] = true;
}

Communicator::Turn::~Turn() {
  std::lock_guard lock(communicator_.mutex_);
  for (size_t each : of_) communicator_.taken_[each] = false;
  communicator_.turn_ended_.notify_all();
}

}  // namespace emu::hccl
