// SPDX-License-Identifier: Apache-2.0
// The address space of the emulated devices. One reserved arena holds every device address of the
// process; in guard mode the addresses that the application holds stay PROT_NONE for ever and the
// data lives at a second, private alias a constant distance away. Freed and unmapped ranges are
// PROT_NONE in both modes, and addresses are reused as late as possible. No accounting here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "runtime/api.h"

namespace emu {

// Bytes; what the device allocator rounds to. Source: CANN documents 2 MiB for huge pages and
// 4 KiB else.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;
inline constexpr size_t kPageBytes = size_t{4} << 10;

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Hands out ranges of [0, size): next fit, so that a freed range is reused late and a stale
// pointer keeps pointing at nothing for as long as possible. Not thread safe.
class RangeAllocator {
 public:
  explicit RangeAllocator(size_t size) : size_(size) {}
  // Sizes are rounded by the caller. Nothing if no gap is large enough.
  std::optional<size_t> take(size_t bytes, size_t alignment);
  // Exactly [offset, offset + bytes) if it is free.
  bool take_at(size_t offset, size_t bytes);
  void give_back(size_t offset);

 private:
  std::optional<size_t> take_between(size_t from, size_t to, size_t bytes, size_t alignment);

  size_t size_;
  size_t cursor_ = 0;
  std::map<size_t, size_t> used_;  // offset -> bytes
};

class AddressSpace {
 public:
  // Reserves the arena at the first call. Never destroyed: workers may outlive static
  // destructors.
  static AddressSpace& instance();

  // A range of device addresses, inaccessible until commit() or map_file(). Null if none is left.
  // `wanted` is a hint as for mmap.
  void* reserve(size_t bytes, size_t alignment, void* wanted = nullptr);
  void release(void* address, size_t bytes);

  // Backs a reserved range with memory of its own, zeroed. False (errno set) if the host is out
  // of memory.
  bool commit(void* address, size_t bytes);
  // Backs a reserved range with `bytes` of `file` from `file_offset`.
  bool map_file(void* address, size_t bytes, int file, size_t file_offset);
  // Makes a range inaccessible again; its own memory is given back to the host.
  void decommit(void* address, size_t bytes);

  bool contains(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - base_ < size_;
  }
  void* alias(const void* address) const {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) +
                                   (contains(address) ? alias_distance_ : 0));
  }
  // The inverse of alias().
  const void* application_address(const void* alias) const {
    auto address = reinterpret_cast<uintptr_t>(alias) - alias_distance_;
    return address - base_ < size_ ? reinterpret_cast<const void*>(address) : alias;
  }
  bool guarded() const { return alias_distance_ != 0; }

 private:
  AddressSpace();

  uintptr_t base_ = 0;
  size_t size_ = 0;
  size_t alias_distance_ = 0;
  std::mutex mutex_;
  RangeAllocator ranges_;
};

// In guard mode: makes a host access to a device address print what it was before the process
// dies of SIGSEGV as it would anyway.
void explain_guard_faults();

// Takes the signal back from a library that has put its own handler in the place of ours.
void keep_fault_handler();

}  // namespace emu
