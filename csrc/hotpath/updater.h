// SPDX-License-Identifier: Apache-2.0
// One thread that issues the task updates of replays, in the order in which they were submitted.
// The step thread submits a replay's lengths right after the replay and goes on. The thread waits
// for the host only, never for the device. What failed stays failed: every later call gets the
// first error, and replays run to their end without updates, so that the process can end.
#pragma once

#include <c10/core/Event.h>
#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "hotpath/task_program.h"

namespace hotpath {

class Updater {
 public:
  // Starts the thread. Throws where it cannot be.
  explicit Updater(UpdateStream stream);
  ~Updater();
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  // To be called right after the replay was submitted to the caller's current stream: records the
  // replay's done event there, and hands its updates to the thread. They come after the done event
  // of the replay before. `captured` is how many tasks the graph waits for.
  void submit(std::shared_ptr<const TaskProgram> program, std::vector<int64_t> query_ends,
              std::vector<int64_t> kv_lens, size_t captured);

  // Wait, on the host, until all that was submitted was issued. False after `timeout_ms`.
  bool settle(int64_t timeout_ms);

  // Throw what the thread failed with, if it did.
  void check();

  // Replays submitted and not yet issued whole.
  int64_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  // Updates issued of the oldest replay that is outstanding, or of the last.
  int64_t issued() const { return issued_.load(std::memory_order_acquire); }

  // For tests of what happens to a replay whose updates are late: stop before the next one.
  void hold(bool held);

  // Issue what was submitted (let it go where it failed or is held), end the thread and join it.
  void close();

 private:
  struct Job {
    std::shared_ptr<const TaskProgram> program;
    std::vector<int64_t> query_ends;
    std::vector<int64_t> kv_lens;
    std::shared_ptr<c10::Event> previous_done;  // empty for the first replay
  };

  void run();
  void issue(const Job& job);
  void let_go(const Job& job, bool is_ordered);
  void refuse_fork() const;

  const UpdateStream stream_;
  const pid_t owner_;
  std::shared_ptr<c10::Event> previous_done_;  // the step thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // with mutex_
  bool held_ = false;     // with mutex_
  bool closing_ = false;  // with mutex_
  std::string error_;     // with mutex_; empty is none
  std::atomic<int64_t> outstanding_ = 0;
  std::atomic<int64_t> issued_ = 0;
  std::unique_ptr<std::thread> thread_;  // last: it uses all of the above
};

}  // namespace hotpath
