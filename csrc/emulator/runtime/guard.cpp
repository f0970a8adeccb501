// SPDX-License-Identifier: Apache-2.0
#include "runtime/guard.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checker/host_buffers.h"
#include "checker/order.h"
#include "runtime/config.h"

namespace emu {

std::optional<size_t> RangeAllocator::take_between(size_t from, size_t to, size_t bytes,
                                                   size_t alignment) {
  size_t candidate = round_up(from, alignment);
  auto next = used_.lower_bound(candidate);
  if (next != used_.begin()) {
    auto previous = std::prev(next);
    candidate = std::max(candidate, round_up(previous->first + previous->second, alignment));
  }
  for (;;) {
    if (candidate > to || to - candidate < bytes) return std::nullopt;
    next = used_.lower_bound(candidate);
    if (next == used_.end() || next->first - candidate >= bytes) {
      used_[candidate] = bytes;
      cursor_ = candidate + bytes;
      return candidate;
    }
    candidate = round_up(next->first + next->second, alignment);
  }
}

std::optional<size_t> RangeAllocator::take(size_t bytes, size_t alignment) {
  auto found = take_between(cursor_, size_, bytes, alignment);
  return found ? found : take_between(0, size_, bytes, alignment);
}

bool RangeAllocator::take_at(size_t offset, size_t bytes) {
  if (offset > size_ || size_ - offset < bytes) return false;
  auto next = used_.lower_bound(offset);
  if (next != used_.end() && next->first - offset < bytes) return false;
  if (next != used_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second > offset) return false;
  }
  used_[offset] = bytes;
  return true;
}

void RangeAllocator::give_back(size_t offset) { used_.erase(offset); }

AddressSpace& AddressSpace::instance() {
  static AddressSpace* space = new AddressSpace;
  return *space;
}

AddressSpace::AddressSpace() : ranges_(0) {
  // Expandable segments reserve more than a device's memory per stream, hence the room. Smaller
  // address spaces (39-bit Arm kernels, sanitizers) get what fits.
  for (int bits = 44; bits >= 36; --bits) {
    size_t size = size_t{1} << bits;
    size_t total = size * (config().guard ? 2 : 1) + kHugePageBytes;
    void* at = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) continue;
    madvise(at, total, MADV_DONTDUMP);
    base_ = round_up(reinterpret_cast<uintptr_t>(at), kHugePageBytes);
    size_ = size;
    alias_distance_ = config().guard ? size : 0;
    ranges_ = RangeAllocator(size);
    return;
  }
  std::fprintf(stderr,
               "[ascend-emulator] cannot reserve address space for device memory (%s): raise the "
               "limit on virtual memory (ulimit -v)\n",
               std::strerror(errno));
  std::_Exit(2);
}

void* AddressSpace::reserve(size_t bytes, size_t alignment, void* wanted) {
  std::lock_guard lock(mutex_);
  if (wanted && contains(wanted)) {
    size_t offset = reinterpret_cast<uintptr_t>(wanted) - base_;
    if (offset % alignment == 0 && ranges_.take_at(offset, bytes)) return wanted;
  }
  auto offset = ranges_.take(bytes, alignment);
  return offset ? reinterpret_cast<void*>(base_ + *offset) : nullptr;
}

void AddressSpace::release(void* address, size_t bytes) {
  decommit(address, bytes);
  std::lock_guard lock(mutex_);
  ranges_.give_back(reinterpret_cast<uintptr_t>(address) - base_);
}

bool AddressSpace::commit(void* address, size_t bytes) {
  void* at = alias(address);
  if (mmap(at, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    return false;
  }
  if (bytes >= kHugePageBytes) madvise(at, bytes, MADV_HUGEPAGE);
  return true;
}

bool AddressSpace::map_file(void* address, size_t bytes, int file, size_t file_offset) {
  void* at = alias(address);
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
           static_cast<off_t>(file_offset)) == MAP_FAILED) {
    return false;
  }
  if (bytes >= kHugePageBytes) madvise(at, bytes, MADV_HUGEPAGE);
  return true;
}

void AddressSpace::decommit(void* address, size_t bytes) {
  mmap(alias(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
       -1, 0);
}

namespace {

struct sigaction previous_action;

// Whether the faulting access was a write, where the processor says so; else taken to be one.
bool is_write_fault([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite;
#else
  return true;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (check::explain_fault(info->si_addr, is_write_fault(context))) return;
  const AddressSpace& space = AddressSpace::instance();
  if (space.contains(info->si_addr)) {
    // Only async-signal-safe calls from here.
    char text[256];
    int length = std::snprintf(text, sizeof text,
                               "[ascend-emulator] host code touched the device address %p (or "
                               "device code a freed one): device memory cannot be read or written "
                               "from the host, copy it\n",
                               info->si_addr);
    if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) {
      // Nothing to do about it: the process is dying.
    }
  }
  // Whoever came after us may hand back to us what we hand on.
  thread_local bool is_handed_on = false;
  if (is_handed_on) {
    std::signal(SIGSEGV, SIG_DFL);
    return;
  }
  is_handed_on = true;
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(signal, info, context);
  } else {
    // Back to what was there before; the faulting instruction runs again and meets that.
    sigaction(signal, &previous_action, nullptr);
  }
}

}  // namespace

void explain_guard_faults() {
  if (!config().guard && !check::on()) return;
  AddressSpace::instance();
  keep_fault_handler();
}

void keep_fault_handler() {
  struct sigaction now = {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) return;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_action);
}

void* host_alias(const void* address) {
  const AddressSpace& space = AddressSpace::instance();
  return space.contains(address) ? space.alias(address) : check::device_view(address);
}

}  // namespace emu
