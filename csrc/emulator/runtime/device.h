// SPDX-License-Identifier: Apache-2.0
// The devices that this process sees: which one a thread uses, its memory budget, its streams,
// and whether it has failed. Properties of the emulated chip are in device_info.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/api.h"

namespace emu {

class Stream;

class Device {
 public:
  Device(int index, int physical_id, size_t hbm_bytes)
      : index_(index), physical_id_(physical_id), hbm_bytes_(hbm_bytes) {}

  int index() const { return index_; }
  int physical_id() const { return physical_id_; }

  // Memory budget. take() is false if `bytes` do not fit.
  bool take_memory(size_t bytes);
  void give_back_memory(size_t bytes) { used_bytes_ -= bytes; }
  size_t used_bytes() const { return used_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }
  size_t hbm_bytes() const { return hbm_bytes_; }

  // The first failure sticks until the device is reset, as on hardware after an AI Core
  // exception: every later submit and synchronisation reports it.
  void set_failed(const std::string& message, aclError code = ACL_ERROR_RT_AICORE_EXCEPTION);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Sets the calling thread's message and returns the failure's code.
  aclError report_failure(const char* api) const;
  void clear_failure();

  std::shared_ptr<Stream> default_stream();
  // Null if the budget of streams is used up.
  std::shared_ptr<Stream> new_stream();
  void forget_stream(const Stream* stream);
  std::vector<std::shared_ptr<Stream>> streams() const;

  std::atomic<bool> active{false};

 private:
  const int index_;
  const int physical_id_;
  const size_t hbm_bytes_;
  std::atomic<size_t> used_bytes_{0};
  std::atomic<size_t> peak_bytes_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  aclError failure_code_ = ACL_SUCCESS;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> default_stream_;
  uint64_t stream_ordinal_ = 0;
};

// Frozen at the first call that uses a device; before, follows ASCEND_RT_VISIBLE_DEVICES.
int device_count();

// Null (message set) if there is no such device.
Device* find_device(int index, const char* api);

// The calling thread's device. Without aclrtSetDevice: the default device of aclInit's
// configuration, else null with message 107002.
Device* current_device(const char* api);

// Index of the calling thread's device, -1 if it has none yet. No error.
int thread_device_index();

// Sets the calling thread's device for a worker thread.
void adopt_device(Device* device);

}  // namespace emu
