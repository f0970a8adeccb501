// SPDX-License-Identifier: Apache-2.0
// What every address is: device memory, page-locked or registered host memory, or neither. The
// allocation APIs are in memory.cpp (malloc) and vmm.cpp (reserve and map).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/api.h"

namespace emu {

enum class MemoryKind : uint8_t {
  kDevice,    // a live device allocation, or a mapped part of a reservation
  kPinned,    // aclrtMallocHost, or registered by aclrtHostRegister
  kPageable,  // host memory that the runtime does not know
  kInvalid,   // a device address with nothing behind it (freed, unmapped, past an end)
};

struct MemoryRange {
  MemoryKind kind;
  int device = -1;       // of kDevice
  std::string why = {};  // of kInvalid
};

// What [address, address + bytes) is. A range that is only partly known is kInvalid.
MemoryRange classify(const void* address, size_t bytes);

// Keeps the bytes of the live aclrtMalloc allocation that holds `address` readable and writable,
// also where it is freed meanwhile; null where there is none.
std::shared_ptr<const void> keep_mapped(const void* address);

// For vmm.cpp: the extent of a reservation and what is mapped in it.
void register_reservation(const void* address, size_t bytes);
// Bytes of the reservation that starts at `address`, 0 if there is none. Fails to forget one
// that still has mappings: then `mapped` is set.
size_t forget_reservation(const void* address, bool* mapped);
bool add_mapping(const void* address, size_t bytes, int device);
// Bytes of the mapping that starts at `address`, 0 if there is none.
size_t remove_mapping(const char* api, const void* address);

// The text of error 207001, with what was asked and what is left.
aclError fail_out_of_memory(const char* api, int device, size_t bytes);

}  // namespace emu
