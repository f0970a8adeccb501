// SPDX-License-Identifier: Apache-2.0
// Opaque handles of the CANN ABI. A handle is not an address: it packs a kind (the magic number),
// a generation and a slot, so that a null, foreign, made-up or already destroyed handle is told
// apart and named without a memory access. Header only: libhccl and libopapi use it too.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "runtime/api.h"

namespace emu {

enum class HandleKind : uint8_t {
  kContext = 0xC7,
  kStream = 0x57,
  kEvent = 0xE7,
  kPhysicalMemory = 0xB1,
  kGraph = 0x6A,
  kTaskGroup = 0x76,
  kTensorDescription = 0xD5,
  kDataBuffer = 0xDB,
  kOperatorAttributes = 0xA7,
  kCommunicator = 0xCC,
};

inline const char* handle_kind_name(uint8_t kind) {
  switch (static_cast<HandleKind>(kind)) {
    case HandleKind::kContext:
      return "context";
    case HandleKind::kStream:
      return "stream";
    case HandleKind::kEvent:
      return "event";
    case HandleKind::kPhysicalMemory:
      return "physical memory";
    case HandleKind::kGraph:
      return "graph";
    case HandleKind::kTaskGroup:
      return "task group";
    case HandleKind::kTensorDescription:
      return "tensor description";
    case HandleKind::kDataBuffer:
      return "data buffer";
    case HandleKind::kOperatorAttributes:
      return "operator attributes";
    case HandleKind::kCommunicator:
      return "communicator";
  }
  return nullptr;
}

// Owns the objects behind one kind of handle. Thread safe; an object lives on while somebody
// still holds the pointer that find() gave.
template <typename T>
class HandleTable {
 public:
  explicit HandleTable(HandleKind kind) : kind_(kind) {}

  void* insert(std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      slots_.push_back({});
    } else {
      index = free_.back();
      free_.pop_back();
    }
    slots_[index].object = std::move(object);
    return pack(index, slots_[index].generation);
  }

  // Null if `handle` is not a live handle of this kind.
  std::shared_ptr<T> find(const void* handle) const {
    std::shared_lock lock(mutex_);
    const Slot* slot = locate(handle);
    return slot ? slot->object : nullptr;
  }

  // Takes the object out; null as for find(). The handle is dead from here on.
  std::shared_ptr<T> erase(const void* handle) {
    std::unique_lock lock(mutex_);
    Slot* slot = const_cast<Slot*>(locate(handle));
    if (!slot) return nullptr;
    std::shared_ptr<T> object = std::move(slot->object);
    slot->object = nullptr;
    slot->generation = (slot->generation + 1) & kGenerationMask;
    free_.push_back(static_cast<uint32_t>(slot - slots_.data()));
    return object;
  }

  std::vector<std::shared_ptr<T>> all() const {
    std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> objects;
    for (const Slot& slot : slots_) {
      if (slot.object) objects.push_back(slot.object);
    }
    return objects;
  }

  // Why find() gave null, for an error message.
  std::string explain(const void* handle) const {
    char text[32];
    std::snprintf(text, sizeof text, "%p", handle);
    std::string name = handle_kind_name(static_cast<uint8_t>(kind_));
    if (!handle) return "the " + name + " handle is null";
    uint64_t bits = reinterpret_cast<uintptr_t>(handle);
    const char* other = bits >> 56 ? nullptr : handle_kind_name((bits >> 48) & 0xFF);
    if (!other) return std::string(text) + " is not a handle of this runtime";
    if ((bits >> 48) != static_cast<uint8_t>(kind_)) {
      return std::string(text) + " is a handle of kind '" + other + "', not '" + name + "'";
    }
    std::shared_lock lock(mutex_);
    if ((bits & kIndexMask) >= slots_.size()) {
      return std::string(text) + " was never a " + name + " handle";
    }
    return "the " + name + " " + text + " was destroyed";
  }

  // Reports a handle that find() or erase() did not know.
  aclError refuse(const char* api, const void* handle) const {
    return fail(ACL_ERROR_RT_INVALID_HANDLE, std::string(api) + ": " + explain(handle));
  }

 private:
  struct Slot {
    std::shared_ptr<T> object;
    uint64_t generation = 1;
  };
  static constexpr uint64_t kIndexMask = 0xFFFFFF;
  static constexpr uint64_t kGenerationMask = 0xFFFFFF;

  void* pack(uint64_t index, uint64_t generation) const {
    uint64_t bits = (static_cast<uint64_t>(kind_) << 48) | (generation << 24) | index;
    return reinterpret_cast<void*>(bits);
  }

  const Slot* locate(const void* handle) const {
    uint64_t bits = reinterpret_cast<uintptr_t>(handle);
    if ((bits >> 48) != static_cast<uint8_t>(kind_)) return nullptr;
    uint64_t index = bits & kIndexMask;
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.object && slot.generation == ((bits >> 24) & kGenerationMask) ? &slot : nullptr;
  }

  const HandleKind kind_;
  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace emu
