// SPDX-License-Identifier: Apache-2.0
#include "checker/host_buffers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>

#include "checker/findings.h"
#include "checker/order.h"
#include "runtime/guard.h"
#include "runtime/memory.h"

namespace emu::check {
namespace {

uintptr_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// Address space for page-locked memory: what the application sees, and a second view of the same
// pages for the device, a constant distance away.
class PageLocked {
 public:
  static PageLocked& instance() {
    static auto* space = new PageLocked;
    return *space;
  }

  bool contains(const void* address) const { return bits(address) - base_ < bytes_; }
  void* view(const void* address) const {
    return reinterpret_cast<void*>(bits(address) + (contains(address) ? bytes_ : 0));
  }

  void* allocate(size_t bytes) {
    std::lock_guard guard(mutex_);
    auto offset = ranges_.take(bytes, kPageBytes);
    if (!offset) {
      errno = ENOMEM;
      return nullptr;
    }
    int file = memfd_create("page-locked", MFD_CLOEXEC);
    auto at = reinterpret_cast<char*>(base_ + *offset);
    bool is_mapped = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0;
    for (char* where : {at, at + bytes_}) {
      is_mapped = is_mapped && mmap(where, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                    file, 0) != MAP_FAILED;
    }
    int error = errno;
    if (file >= 0) close(file);
    if (is_mapped) return at;
    unmap(at, bytes);
    ranges_.give_back(*offset);
    errno = error;
    return nullptr;
  }

  void free(void* address, size_t bytes) {
    std::lock_guard guard(mutex_);
    unmap(static_cast<char*>(address), bytes);
    ranges_.give_back(bits(address) - base_);
  }

 private:
  PageLocked() : ranges_(0) {
    // Smaller address spaces (39-bit Arm kernels, sanitizers) get what fits.
    for (int size_bits = 40; size_bits >= 32; --size_bits) {
      const size_t bytes = size_t{1} << size_bits;
      void* at =
          mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) continue;
      base_ = bits(at);
      bytes_ = bytes;
      ranges_ = RangeAllocator(bytes);
      return;
    }
    std::fprintf(stderr,
                 "[ascend-check] cannot reserve address space for page-locked memory (%s): raise "
                 "the limit on virtual memory (ulimit -v)\n",
                 std::strerror(errno));
    std::_Exit(2);
  }

  void unmap(char* at, size_t bytes) {
    for (char* where : {at, at + bytes_}) {
      mmap(where, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    }
  }

  uintptr_t base_ = 0;
  size_t bytes_ = 0;
  std::mutex mutex_;
  RangeAllocator ranges_;
};

// A copy that a host thread does not know to be done.
struct Flight {
  OperationPtr copy;
  uintptr_t begin;
  uintptr_t end;
  bool device_writes;
  uint64_t contents;  // of a source, when the copy was submitted
  Epoch epoch;        // count 0: it has not begun
  bool is_reported = false;
};

std::list<Flight>& flights() {
  static auto* all = new std::list<Flight>;
  return *all;
}

// Not cryptographic: two contents that differ by accident differ here.
uint64_t digest(uintptr_t begin, uintptr_t end) {
  const char* at = static_cast<const char*>(device_view(reinterpret_cast<const void*>(begin)));
  size_t bytes = end - begin;
  uint64_t value = 0x9E3779B97F4A7C15ull ^ bytes;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    value = (value ^ word) * 0xD6E8FEB86659FD93ull;
    value ^= value >> 32;
  }
  for (; bytes; --bytes, ++at) {
    value = (value ^ static_cast<unsigned char>(*at)) * 0xD6E8FEB86659FD93ull;
  }
  return value;
}

// Gives the pages of [begin, end) the protection that the flights over them ask for.
void protect(uintptr_t begin, uintptr_t end) {
  if (!PageLocked::instance().contains(reinterpret_cast<const void*>(begin))) return;
  for (uintptr_t page = begin / kPageBytes * kPageBytes; page < end; page += kPageBytes) {
    int protection = PROT_READ | PROT_WRITE;
    for (const Flight& flight : flights()) {
      if (flight.is_reported || flight.end <= page || flight.begin >= page + kPageBytes) continue;
      protection = flight.device_writes ? PROT_NONE : std::min<int>(protection, PROT_READ);
      if (protection == PROT_NONE) break;
    }
    mprotect(reinterpret_cast<void*>(page), kPageBytes, protection);
  }
}

Finding source_changed(const Flight& flight) {
  return {Kind::kHostSourceChanged,
          "the host changed the source of an asynchronous copy before it knew that the copy was "
          "done",
          "wait for the copy (an event after it) before the memory is written again, or copy from "
          "memory that nobody else writes",
          flight.begin,
          flight.end,
          {{flight.copy, "read", 0}}};
}

// Findings that were made with the lock are reported without it.
std::vector<Finding>& pending() {
  static auto* all = new std::vector<Finding>;
  return *all;
}

// Pages that a fault opened, to be closed again at the next call.
std::vector<uintptr_t>& opened() {
  static auto* all = new std::vector<uintptr_t>;
  return *all;
}

void close_opened() {
  for (uintptr_t page : opened()) protect(page, page + 1);
  opened().clear();
}

void compare(Flight& flight) {
  if (flight.device_writes || flight.is_reported) return;
  if (digest(flight.begin, flight.end) == flight.contents) return;
  flight.is_reported = true;
  pending().push_back(source_changed(flight));
}

}  // namespace

void* allocate_page_locked(size_t bytes) { return PageLocked::instance().allocate(bytes); }

bool free_page_locked(void* address, size_t bytes) {
  if (!on() || !PageLocked::instance().contains(address)) return false;
  PageLocked::instance().free(address, bytes);
  return true;
}

void* device_view(const void* address) {
  return on() ? PageLocked::instance().view(address) : const_cast<void*>(address);
}

void copy_submitted(const OperationPtr& copy, const void* host, size_t bytes, bool device_writes) {
  if (!on() || !copy) return;
  uintptr_t begin = bits(host);
  std::lock_guard guard(lock());
  keep_fault_handler();
  close_opened();
  flights().push_back({copy,
                       begin,
                       begin + bytes,
                       device_writes,
                       device_writes ? 0 : digest(begin, begin + bytes),
                       {}});
  protect(begin, begin + bytes);
}

void copy_is_not_pinned(const OperationPtr& copy, bool device_writes) {
  if (!on() || !copy) return;
  report({Kind::kUnpinnedAsyncCopy,
          "an asynchronous copy of host memory that is not page-locked, whatever its tensor says: "
          "it is not the copy that was asked for, and on hardware the memory may be read later",
          "copy from memory that aclrtMallocHost or aclrtHostRegister has locked, or synchronously",
          0,
          0,
          {{copy, device_writes ? "write" : "read", 0}}});
}

void copy_dropped(const OperationPtr& copy) {
  if (!on() || !copy) return;
  std::lock_guard guard(lock());
  for (auto flight = flights().begin(); flight != flights().end(); ++flight) {
    if (flight->copy != copy) continue;
    uintptr_t begin = flight->begin;
    uintptr_t end = flight->end;
    flights().erase(flight);
    return protect(begin, end);
  }
}

void copy_begins(const OperationPtr& copy, Epoch epoch) {
  for (Flight& flight : flights()) {
    if (flight.copy != copy) continue;
    flight.epoch = epoch;
    compare(flight);
  }
}

void host_knows_more() {
  close_opened();
  for (auto flight = flights().begin(); flight != flights().end();) {
    if (flight->epoch.count == 0 || !host_clock().covers(flight->epoch)) {
      ++flight;
      continue;
    }
    compare(*flight);
    uintptr_t begin = flight->begin;
    uintptr_t end = flight->end;
    flight = flights().erase(flight);
    protect(begin, end);
  }
}

void forget_copies() {
  while (!flights().empty()) {
    Flight last = flights().back();
    flights().pop_back();
    protect(last.begin, last.end);
  }
  pending().clear();
  opened().clear();
}

void report_pending() {
  std::vector<Finding> findings;
  {
    std::lock_guard guard(lock());
    findings.swap(pending());
  }
  for (const Finding& finding : findings) report(finding);
}

void host_memory_freed(const char* api, const void* address, size_t bytes) {
  if (!on()) return;
  StackId stack = capture_stack();
  std::vector<Finding> findings;
  {
    std::lock_guard guard(lock());
    uintptr_t begin = bits(address);
    for (auto flight = flights().begin(); flight != flights().end();) {
      if (flight->end <= begin || flight->begin >= begin + bytes) {
        ++flight;
        continue;
      }
      findings.push_back({Kind::kHostMemoryFreed,
                          "host memory is given back under an asynchronous copy that nobody "
                          "waited for",
                          "wait for the copy before the memory is freed",
                          flight->begin,
                          flight->end,
                          {{flight->copy, flight->device_writes ? "write" : "read", 0},
                           {host_operation(api, address, bytes, stack), "", 0}}});
      flight = flights().erase(flight);
    }
  }
  for (const Finding& finding : findings) report(finding);
}

bool explain_fault(void* address, bool is_write) {
  if (!on() || !PageLocked::instance().contains(address)) return false;
  StackId stack = capture_stack();
  std::vector<Finding> findings;
  {
    std::lock_guard guard(lock());
    uintptr_t at = bits(address);
    uintptr_t page = at / kPageBytes * kPageBytes;
    bool is_known = false;
    for (Flight& flight : flights()) {
      if (flight.end <= page || flight.begin >= page + kPageBytes || flight.is_reported) continue;
      is_known = true;
      // The page is opened below: what touches the rest of it is seen by contents only.
      bool is_in_flight = flight.begin <= at && at < flight.end;
      if (!is_in_flight || (!is_write && !flight.device_writes)) continue;
      flight.is_reported = true;
      findings.push_back(
          {flight.device_writes ? Kind::kHostReadEarly : Kind::kHostSourceChanged,
           flight.device_writes
               ? "the host touches what an asynchronous copy writes before it knows that the copy "
                 "is done"
               : "the host writes the source of an asynchronous copy before it knows that the copy "
                 "is done",
           "wait for the copy (an event after it) before the memory is touched",
           flight.begin,
           flight.end,
           {{flight.copy, flight.device_writes ? "write" : "read", 0},
            {host_operation(is_write ? "host write" : "host read", address, 1, stack),
             is_write ? "write" : "read", 0}}});
    }
    if (!is_known) {
      // A page whose flights have gone meanwhile: its protection may have, too.
      uintptr_t probe = page;
      protect(probe, probe + 1);
    } else {
      mprotect(reinterpret_cast<void*>(page), kPageBytes, PROT_READ | PROT_WRITE);
      opened().push_back(page);
    }
  }
  for (const Finding& finding : findings) report(finding);
  return true;
}

}  // namespace emu::check
