// SPDX-License-Identifier: Apache-2.0
#include "hotpath/updater.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <exception>

#include "hotpath/acl_call.h"

namespace hotpath {

Updater::Updater(UpdateStream stream) : stream_(stream), owner_(getpid()) {
  thread_ = std::make_unique<std::thread>([this] { run(); });
}

Updater::~Updater() {
  if (getpid() != owner_) {
    // The thread is the parent's: there is none here to join.
    static_cast<void>(thread_.release());
    return;
  }
  close();
}

void Updater::refuse_fork() const {
  TORCH_CHECK(getpid() == owner_, "the task updater belongs to process ", owner_,
              " and does not exist in process ", getpid(), ", its fork; start workers by spawn");
}

void Updater::check() {
  refuse_fork();
  std::lock_guard lock(mutex_);
  TORCH_CHECK(error_.empty(), error_);
  TORCH_CHECK(!closing_, "the task updater was shut down");
}

void Updater::submit(std::shared_ptr<const TaskProgram> program, std::vector<int64_t> query_ends,
                     std::vector<int64_t> kv_lens, size_t captured) {
  check();
  TORCH_CHECK(program->size() == captured, "the graph waits for ", captured,
              " attention updates and ", program->size(), " are known");
  const c10::Device device = stream_.torch_stream.device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto done = std::make_shared<c10::Event>(device.type());
  done->record(guard.getStream(device));
  Job job{std::move(program), std::move(query_ends), std::move(kv_lens),
          std::exchange(previous_done_, std::move(done))};
  outstanding_.fetch_add(1, std::memory_order_acq_rel);
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

bool Updater::settle(int64_t timeout_ms) {
  refuse_fork();
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [this] { return outstanding() == 0 || !error_.empty(); });
}

void Updater::hold(bool held) {
  refuse_fork();
  {
    std::lock_guard lock(mutex_);
    held_ = held;
  }
  changed_.notify_all();
}

void Updater::close() {
  refuse_fork();
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_ && thread_->joinable()) thread_->join();
}

void Updater::run() {
  pthread_setname_np(pthread_self(), "task-updater");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || (!jobs_.empty() && !held_); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    const bool is_refused = held_ || !error_.empty();
    lock.unlock();
    std::string error;
    try {
      is_refused ? let_go(job, /*is_ordered=*/false) : issue(job);
    } catch (const c10::Error& failure) {
      error = failure.what_without_backtrace();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    lock.lock();
    if (!error.empty() && error_.empty()) {
      error_ = "update " + std::to_string(issued()) + " of a replay failed: " + error;
      lock.unlock();
      // Only now that everybody can see the error: the replay's result is not one.
      try {
        let_go(job, /*is_ordered=*/true);
      } catch (const std::exception&) {
        // The runtime refuses even this; the first error is the one to report.
      }
      lock.lock();
    }
    job = {};  // gives back what the job held before anybody is told that it is done
    outstanding_.fetch_sub(1, std::memory_order_acq_rel);
    changed_.notify_all();
  }
}

void Updater::let_go(const Job& job, bool is_ordered) {
  const c10::StreamGuard guard(stream_.torch_stream);
  if (!is_ordered) {
    issued_.store(0, std::memory_order_release);
    if (job.previous_done) job.previous_done->block(stream_.torch_stream);
  }
  job.program->let_go(stream_, static_cast<size_t>(issued()));
}

void Updater::issue(const Job& job) {
  issued_.store(0, std::memory_order_release);
  const c10::StreamGuard guard(stream_.torch_stream);
  const c10::InferenceMode mode;
  // The record of that event is with the runtime: it was before the replay, whose submission
  // empties torch_npu's queue.
  if (job.previous_done) job.previous_done->block(stream_.torch_stream);
  job.program->update(stream_, job.query_ends, job.kv_lens, issued_);
}

}  // namespace hotpath
