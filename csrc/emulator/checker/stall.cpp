// SPDX-License-Identifier: Apache-2.0
#include "checker/stall.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "checker/findings.h"
#include "checker/order.h"
#include "runtime/config.h"
#include "runtime/device.h"

namespace emu::check {
namespace {

struct Work {
  OperationPtr operation;
  std::string waits_for = {};  // empty: it computes
  std::unique_ptr<const Peers> peers = nullptr;
};

struct HostWaiter {
  const char* api;
  int device;
  std::string thread;
  StackId stack;
};

struct Watch {
  std::mutex mutex;
  std::map<int32_t, Work> workers;  // that have a task
  std::map<uint64_t, HostWaiter> waiters;
  uint64_t next_waiter = 1;
  bool is_watching = false;
  std::atomic<uint64_t> moves{0};
};

Watch& watch() {
  static auto* instance = new Watch;
  return *instance;
}

// With the lock.
bool may_be_stalled(const Watch& w) {
  if (w.waiters.empty() || w.workers.empty()) return false;
  for (const auto& [stream, work] : w.workers) {
    if (work.waits_for.empty()) return false;
  }
  return true;
}

// With the lock. Says to the other ranks whether nothing moves here.
void tell_peers(const Watch& w, bool is_stalled) {
  for (const auto& [stream, work] : w.workers) {
    if (!work.peers) continue;
    const int device = work.peers->device;
    bool is_awaited = std::any_of(w.waiters.begin(), w.waiters.end(),
                                  [&](const auto& each) { return each.second.device == device; });
    work.peers->tell(is_stalled && is_awaited);
  }
}

// With the lock.
bool are_peers_stalled(const Watch& w) {
  return std::all_of(w.workers.begin(), w.workers.end(), [](const auto& each) {
    return !each.second.peers || each.second.peers->are_stalled();
  });
}

// With the lock.
Finding describe(const Watch& w) {
  Finding finding{Kind::kDeadlock,
                  "nothing moves: every stream with work waits, and nobody submits what they wait "
                  "for.",
                  "submit what the streams wait for before the host waits for them: between a "
                  "replay and the last record of its updates nothing may wait for the device",
                  0,
                  0,
                  {}};
  for (const auto& [id, waiter] : w.waiters) {
    finding.message += " Thread " + waiter.thread + " is in " + waiter.api;
    for (const std::string& frame : frames(waiter.stack)) finding.message += ", " + frame;
    finding.message += ".";
  }
  for (const auto& [stream, work] : w.workers) {
    finding.message += " Stream " + std::to_string(stream) + " waits for " + work.waits_for + ".";
    if (work.operation) finding.sides.push_back({work.operation, "waits", 0});
  }
  return finding;
}

void look() {
  using namespace std::chrono;
  const auto limit = milliseconds(config().check_stall_ms);
  Watch& w = watch();
  uint64_t seen = 0;
  auto since = steady_clock::now();
  bool is_reported = false;
  // What other ranks say may be older than a look of theirs.
  constexpr int kLooks = 3;
  int peers_seen_stalled = 0;
  for (;;) {
    std::this_thread::sleep_for(std::min<milliseconds>(limit / 4, milliseconds(100)));
    std::unique_lock guard(w.mutex);
    uint64_t moves = w.moves;
    if (moves != seen || !may_be_stalled(w)) {
      seen = moves;
      since = steady_clock::now();
      is_reported = false;
      peers_seen_stalled = 0;
      tell_peers(w, false);
      continue;
    }
    if (is_reported || steady_clock::now() - since < limit) continue;
    tell_peers(w, true);
    peers_seen_stalled = are_peers_stalled(w) ? peers_seen_stalled + 1 : 0;
    const bool has_peers = std::any_of(w.workers.begin(), w.workers.end(), [](const auto& each) {
      return each.second.peers != nullptr;
    });
    if (!peers_seen_stalled || (has_peers && peers_seen_stalled < kLooks)) continue;
    is_reported = true;
    Finding finding = describe(w);
    guard.unlock();
    report(finding);
  }
}

}  // namespace

void moved() { watch().moves.fetch_add(1, std::memory_order_relaxed); }

void worker_runs(int32_t stream, const OperationPtr& operation) {
  Watch& w = watch();
  std::lock_guard guard(w.mutex);
  w.workers[stream] = {operation};
}

void worker_waits(int32_t stream, const std::string& what) {
  Watch& w = watch();
  std::lock_guard guard(w.mutex);
  w.workers[stream].waits_for = what;
}

void worker_waits_for_peers(int32_t stream, std::unique_ptr<const Peers> peers) {
  Watch& w = watch();
  std::lock_guard guard(w.mutex);
  Work& work = w.workers[stream];
  if (!peers && work.peers) work.peers->tell(false);
  work.peers = std::move(peers);
}

void worker_is_idle(int32_t stream) {
  Watch& w = watch();
  std::lock_guard guard(w.mutex);
  w.workers.erase(stream);
}

HostWaits::HostWaits(const char* api) {
  if (!on() || !config().check_stall_ms) return;
  HostWaiter waiter{api, thread_device_index(), thread_name(), capture_stack()};
  Watch& w = watch();
  std::lock_guard guard(w.mutex);
  id_ = w.next_waiter++;
  w.waiters.emplace(id_, std::move(waiter));
  moved();
  if (!w.is_watching) {
    w.is_watching = true;
    std::thread(look).detach();
  }
}

HostWaits::~HostWaits() {
  if (!id_) return;
  Watch& w = watch();
  std::lock_guard guard(w.mutex);
  w.waiters.erase(id_);
}

}  // namespace emu::check
