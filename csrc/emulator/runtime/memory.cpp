// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "checker/host_buffers.h"
#include "checker/order.h"
#include "runtime/capture.h"
#include "runtime/counters.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/guard.h"
#include "runtime/inject.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace emu {
namespace {

struct Extent {
  size_t bytes;
  int device;
  std::shared_ptr<const void> pages = nullptr;  // of aclrtMalloc: unmapped when nobody keeps them
};

using Extents = std::map<uintptr_t, Extent>;

struct Registry {
  mutable std::shared_mutex mutex;
  Extents device;        // aclrtMalloc
  Extents pinned;        // aclrtMallocHost
  Extents registered;    // aclrtHostRegister; may cover pinned memory
  Extents reservations;  // aclrtReserveMemAddress
  Extents mappings;      // aclrtMapMem, inside reservations
};

Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

uintptr_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// The extent that holds `address`.
Extents::const_iterator holder(const Extents& extents, uintptr_t address) {
  auto next = extents.upper_bound(address);
  if (next == extents.begin()) return extents.end();
  auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : extents.end();
}

bool overlaps(const Extents& extents, uintptr_t address, size_t bytes) {
  auto next = extents.lower_bound(address);
  if (next != extents.end() && next->first - address < bytes) return true;
  return holder(extents, address) != extents.end();
}

std::string hex(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

MemoryRange invalid(const void* address, size_t bytes, const std::string& what) {
  return {MemoryKind::kInvalid, -1,
          "[" + hex(address) + ", +" + std::to_string(bytes) + " bytes) " + what};
}

MemoryRange classify_device(const Registry& r, const void* address, size_t bytes) {
  auto found = holder(r.device, bits(address));
  if (found != r.device.end()) {
    size_t left = found->first + found->second.bytes - bits(address);
    if (bytes <= left) return {MemoryKind::kDevice, found->second.device};
    return invalid(address, bytes, "runs past the end of its device allocation");
  }
  if (holder(r.reservations, bits(address)) == r.reservations.end()) {
    return invalid(address, bytes, "is a device address without an allocation (freed?)");
  }
  // Mappings may adjoin: walk until the range is covered.
  int device = -1;
  uintptr_t at = bits(address);
  do {
    auto mapping = holder(r.mappings, at);
    if (mapping == r.mappings.end()) {
      return invalid(address, bytes, "is reserved address space that is not mapped throughout");
    }
    if (device < 0) device = mapping->second.device;
    at = mapping->first + mapping->second.bytes;
  } while (at - bits(address) < bytes);
  return {MemoryKind::kDevice, device};
}

aclError allocate_device(const char* api, void** address, size_t bytes) {
  EMU_REQUIRE_NOT_NULL(address);
  Device* device = current_device(api);
  if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
  if (bytes == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": size is 0");
  if (allocations_fail()) return fail_out_of_memory(api, device->index(), bytes);
  if (bytes > device->hbm_bytes()) return fail_out_of_memory(api, device->index(), bytes);
  // As the driver does: huge pages above 1 MiB.
  bool is_huge = bytes > (size_t{1} << 20);
  size_t rounded = round_up(bytes, is_huge ? kHugePageBytes : kPageBytes);
  if (!device->take_memory(rounded)) return fail_out_of_memory(api, device->index(), bytes);
  AddressSpace& space = AddressSpace::instance();
  void* at = space.reserve(rounded, is_huge ? kHugePageBytes : kPageBytes);
  if (!at || !space.commit(at, rounded)) {
    if (at) space.release(at, rounded);
    device->give_back_memory(rounded);
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                std::string(api) + ": the host has no memory left for " + std::to_string(bytes) +
                    " bytes of emulated device memory: " + std::strerror(errno));
  }
  std::shared_ptr<const void> pages(
      at, [rounded](void* first) { AddressSpace::instance().release(first, rounded); });
  {
    Registry& r = registry();
    std::unique_lock lock(r.mutex);
    r.device[bits(at)] = {rounded, device->index(), std::move(pages)};
  }
  count_allocation(AllocationKind::kDevice, rounded);
  check::memory_is_new(at, rounded);
  *address = at;
  return ACL_SUCCESS;
}

aclError free_device(const char* api, void* address) {
  EMU_REQUIRE_NOT_NULL(address);
  Registry& r = registry();
  Extent extent;
  {
    check::Freeing freeing(api);
    std::unique_lock lock(r.mutex);
    auto found = r.device.find(bits(address));
    if (found == r.device.end()) {
      const char* what = "not the start of a live device allocation";
      if (holder(r.device, bits(address)) != r.device.end()) {
        what = "inside a device allocation, not its start";
      } else if (r.pinned.contains(bits(address))) {
        what = "page-locked host memory: call aclrtFreeHost";
      }
      return fail(ACL_ERROR_RT_PARAM_INVALID,
                  std::string(api) + ": " + hex(address) + " is " + what);
    }
    extent = std::move(found->second);
    r.device.erase(found);
    freeing.gone(address, extent.bytes);
  }
  extent.pages = nullptr;
  find_device(extent.device, api)->give_back_memory(extent.bytes);
  count_free(AllocationKind::kDevice, extent.bytes);
  return ACL_SUCCESS;
}

aclError allocate_host(const char* api, void** address, size_t bytes) {
  EMU_REQUIRE_NOT_NULL(address);
  if (bytes == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": size is 0");
  mark_in_use();
  size_t rounded = round_up(bytes, kPageBytes);
  void* at = nullptr;
  if (rounded >= bytes && check::on()) {
    at = check::allocate_page_locked(rounded);
  } else if (rounded >= bytes) {
    at = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) at = nullptr;
  }
  if (!at) {
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, std::string(api) + ": no host memory for " +
                                                    std::to_string(bytes) +
                                                    " page-locked bytes: " + std::strerror(errno));
  }
  {
    Registry& r = registry();
    std::unique_lock lock(r.mutex);
    r.pinned[bits(at)] = {rounded, -1};
  }
  count_allocation(AllocationKind::kPinned, rounded);
  *address = at;
  return ACL_SUCCESS;
}

aclError free_host(const char* api, void* address) {
  EMU_REQUIRE_NOT_NULL(address);
  Registry& r = registry();
  size_t bytes;
  {
    std::unique_lock lock(r.mutex);
    auto found = r.pinned.find(bits(address));
    if (found == r.pinned.end()) {
      return fail(ACL_ERROR_RT_PARAM_INVALID,
                  std::string(api) + ": " + hex(address) +
                      " is not the start of a live aclrtMallocHost allocation");
    }
    bytes = found->second.bytes;
    if (overlaps(r.registered, bits(address), bytes)) {
      return fail(ACL_ERROR_RT_PARAM_INVALID,
                  std::string(api) + ": " + hex(address) +
                      " is still registered: call aclrtHostUnregister first");
    }
    r.pinned.erase(found);
  }
  check::host_memory_freed(api, address, bytes);
  check::memory_is_new(address, bytes);
  if (!check::free_page_locked(address, bytes)) munmap(address, bytes);
  count_free(AllocationKind::kPinned, bytes);
  return ACL_SUCCESS;
}

aclError register_host(const char* api, void* address, uint64_t bytes) {
  EMU_REQUIRE_NOT_NULL(address);
  if (bytes == 0) return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(api) + ": size is 0");
  // CANN documents that the address must be aligned to a 4 KiB page.
  if (bits(address) % kPageBytes) {
    return fail(ACL_ERROR_RT_ADDR_UNALIGNED,
                std::string(api) + ": " + hex(address) + " is not aligned to 4096 bytes");
  }
  if (AddressSpace::instance().contains(address)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                std::string(api) + ": " + hex(address) + " is a device address");
  }
  mark_in_use();
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  if (overlaps(r.registered, bits(address), bytes)) {
    return fail(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                std::string(api) + ": " + hex(address) + ", " + std::to_string(bytes) +
                    " bytes, overlaps memory that is registered already");
  }
  r.registered[bits(address)] = {bytes, -1};
  count_allocation(AllocationKind::kRegistered, bytes);
  return ACL_SUCCESS;
}

void drain_device(const char* api) {
  Device* device = current_device(api);
  if (!device) return;
  for (const auto& stream : device->streams()) stream->wait(-1, api);
}

}  // namespace

MemoryRange classify(const void* address, size_t bytes) {
  const Registry& r = registry();
  std::shared_lock lock(r.mutex);
  if (AddressSpace::instance().contains(address)) return classify_device(r, address, bytes);
  for (const Extents* extents : {&r.pinned, &r.registered}) {
    auto found = holder(*extents, bits(address));
    if (found == extents->end()) continue;
    // A copy that is only partly page-locked is handled as pageable, as the driver must.
    bool is_whole = bytes <= found->first + found->second.bytes - bits(address);
    if (is_whole) return {MemoryKind::kPinned};
  }
  return {MemoryKind::kPageable};
}

std::shared_ptr<const void> keep_mapped(const void* address) {
  const Registry& r = registry();
  std::shared_lock lock(r.mutex);
  auto found = holder(r.device, bits(address));
  return found == r.device.end() ? nullptr : found->second.pages;
}

void register_reservation(const void* address, size_t bytes) {
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  r.reservations[bits(address)] = {bytes, -1};
}

size_t forget_reservation(const void* address, bool* mapped) {
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  *mapped = false;
  auto found = r.reservations.find(bits(address));
  if (found == r.reservations.end()) return 0;
  size_t bytes = found->second.bytes;
  *mapped = overlaps(r.mappings, bits(address), bytes);
  if (!*mapped) r.reservations.erase(found);
  return bytes;
}

bool add_mapping(const void* address, size_t bytes, int device) {
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  auto reservation = holder(r.reservations, bits(address));
  if (reservation == r.reservations.end()) return false;
  if (reservation->first + reservation->second.bytes - bits(address) < bytes) return false;
  if (overlaps(r.mappings, bits(address), bytes)) return false;
  r.mappings[bits(address)] = {bytes, device};
  return true;
}

size_t remove_mapping(const char* api, const void* address) {
  Registry& r = registry();
  check::Freeing freeing(api);
  std::unique_lock lock(r.mutex);
  auto found = r.mappings.find(bits(address));
  if (found == r.mappings.end()) return 0;
  size_t bytes = found->second.bytes;
  r.mappings.erase(found);
  freeing.gone(address, bytes);
  return bytes;
}

aclError fail_out_of_memory(const char* api, int index, size_t bytes) {
  const Device* device = find_device(index, api);
  size_t free_bytes = device->hbm_bytes() - device->used_bytes();
  return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
              std::string(api) + ": device " + std::to_string(index) +
                  " is out of memory: " + std::to_string(bytes) + " bytes asked, " +
                  std::to_string(free_bytes) + " of " + std::to_string(device->hbm_bytes()) +
                  " free (ASCEND_EMU_HBM_BYTES sets the size)");
}

}  // namespace emu

EMU_API aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy) {
  EMU_ENTER();
  return emu::allocate_device(__func__, address, bytes);
}

EMU_API aclError aclrtMallocAlign32(void** address, size_t bytes, aclrtMemMallocPolicy) {
  EMU_ENTER();
  return emu::allocate_device(__func__, address, bytes);
}

// Frees at once, whatever still runs: CANN documents that aclrtFree does not wait.
EMU_API aclError aclrtFree(void* address) {
  EMU_ENTER();
  return emu::free_device(__func__, address);
}

EMU_API aclError aclrtFreeWithDevSync(void* address) {
  EMU_ENTER();
  emu::drain_device(__func__);
  return emu::free_device(__func__, address);
}

EMU_API aclError aclrtMallocHost(void** address, size_t bytes) {
  EMU_ENTER();
  return emu::allocate_host(__func__, address, bytes);
}

EMU_API aclError aclrtMallocHostWithCfg(void** address, uint64_t bytes, aclrtMallocConfig*) {
  EMU_ENTER();
  return emu::allocate_host(__func__, address, bytes);
}

EMU_API aclError aclrtFreeHost(void* address) {
  EMU_ENTER();
  return emu::free_host(__func__, address);
}

EMU_API aclError aclrtFreeHostWithDevSync(void* address) {
  EMU_ENTER();
  emu::drain_device(__func__);
  return emu::free_host(__func__, address);
}

// The device reaches registered host memory at its own address.
EMU_API aclError aclrtHostRegister(void* address, uint64_t bytes, aclrtHostRegisterType,
                                   void** device_address) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(device_address);
  if (aclError error = emu::register_host(__func__, address, bytes)) return error;
  *device_address = address;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtHostRegisterV2(void* address, uint64_t bytes, uint32_t) {
  EMU_ENTER();
  return emu::register_host(__func__, address, bytes);
}

EMU_API aclError aclrtHostGetDevicePointer(void* host_address, void** device_address, uint32_t) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(device_address);
  if (emu::classify(host_address, 1).kind != emu::MemoryKind::kPinned) {
    return emu::fail(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED,
                     "aclrtHostGetDevicePointer: " + emu::hex(host_address) + " is not registered");
  }
  *device_address = host_address;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtHostUnregister(void* address) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(address);
  auto& r = emu::registry();
  size_t bytes = 0;
  {
    std::shared_lock lock(r.mutex);
    auto found = r.registered.find(emu::bits(address));
    if (found != r.registered.end()) bytes = found->second.bytes;
  }
  if (bytes) emu::check::host_memory_freed(__func__, address, bytes);
  std::unique_lock lock(r.mutex);
  auto found = r.registered.find(emu::bits(address));
  if (found == r.registered.end()) {
    return emu::fail(
        ACL_ERROR_HOST_MEMORY_NOT_REGISTERED,
        "aclrtHostUnregister: " + emu::hex(address) + " is not the start of a registered range");
  }
  emu::count_free(emu::AllocationKind::kRegistered, found->second.bytes);
  r.registered.erase(found);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(address);
  EMU_REQUIRE_NOT_NULL(attributes);
  *attributes = {};
  emu::MemoryRange range = emu::classify(address, 1);
  switch (range.kind) {
    case emu::MemoryKind::kDevice:
      attributes->location = {static_cast<uint32_t>(range.device), ACL_MEM_LOCATION_TYPE_DEVICE};
      attributes->pageSize = emu::kHugePageBytes;
      break;
    case emu::MemoryKind::kPinned:
      attributes->location = {0, ACL_MEM_LOCATION_TYPE_HOST};
      attributes->pageSize = emu::kPageBytes;
      break;
    default:
      attributes->location = {0, ACL_MEM_LOCATION_TYPE_UNREGISTERED};
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free_bytes, size_t* total_bytes) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(free_bytes);
  EMU_REQUIRE_NOT_NULL(total_bytes);
  const emu::Device* device = emu::current_device(__func__);
  if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
  *total_bytes = device->hbm_bytes();
  *free_bytes = device->hbm_bytes() - device->used_bytes();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetMemUsageInfo(int32_t device_id, aclrtMemUsageInfo* usage,
                                      size_t input_count, size_t* output_count) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(output_count);
  const emu::Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  *output_count = 0;
  if (!usage || input_count == 0) return ACL_SUCCESS;
  usage[0] = {};
  std::strncpy(usage[0].name, "application", sizeof usage[0].name - 1);
  usage[0].curMemSize = device->used_bytes();
  usage[0].memPeakSize = device->peak_bytes();
  *output_count = 1;
  return ACL_SUCCESS;
}
