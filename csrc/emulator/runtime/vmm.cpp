// SPDX-License-Identifier: Apache-2.0
// Virtual memory management (expandable segments): reserve addresses, allocate physical memory,
// map one to the other. Physical memory is a range of one sparse file, so that a handle can be
// mapped more than once; its bytes count against the device from allocation to free.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/counters.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/guard.h"
#include "runtime/handles.h"
#include "runtime/memory.h"
#include "runtime/process.h"

namespace emu {
namespace {

class PhysicalStore {
 public:
  static PhysicalStore& instance() {
    static auto* store = new PhysicalStore;
    return *store;
  }

  std::optional<size_t> take(size_t bytes) {
    std::lock_guard lock(mutex_);
    if (file_ < 0 && !open()) return std::nullopt;
    return ranges_.take(bytes, kHugePageBytes);
  }

  void give_back(size_t offset, size_t bytes) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
    std::lock_guard lock(mutex_);
    ranges_.give_back(offset);
  }

  int file() const { return file_; }

 private:
  static constexpr size_t kBytes = size_t{1} << 43;

  bool open() {
    int file = memfd_create("ascend_emulator_hbm", MFD_CLOEXEC);
    if (file < 0) return false;
    if (ftruncate(file, static_cast<off_t>(kBytes)) != 0) {
      close(file);
      return false;
    }
    file_ = file;
    return true;
  }

  std::mutex mutex_;
  int file_ = -1;
  RangeAllocator ranges_{kBytes};
};

// Lives as long as its handle or a mapping of it: freeing a mapped handle gives the memory back
// when the last mapping goes, as CANN does.
class PhysicalMemory {
 public:
  PhysicalMemory(Device& device, size_t offset, size_t bytes)
      : device_(device), offset_(offset), bytes_(bytes) {
    count_allocation(AllocationKind::kPhysical, bytes);
  }
  ~PhysicalMemory() {
    PhysicalStore::instance().give_back(offset_, bytes_);
    device_.give_back_memory(bytes_);
    count_free(AllocationKind::kPhysical, bytes_);
  }
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  Device& device() const { return device_; }
  size_t offset() const { return offset_; }
  size_t bytes() const { return bytes_; }

 private:
  Device& device_;
  const size_t offset_;
  const size_t bytes_;
};

HandleTable<PhysicalMemory>& physical_memory() {
  static auto* table = new HandleTable<PhysicalMemory>(HandleKind::kPhysicalMemory);
  return *table;
}

// What is mapped keeps its memory alive.
struct Mapped {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<PhysicalMemory>> memory;
};

Mapped& mapped() {
  static auto* instance = new Mapped;
  return *instance;
}

bool is_page_multiple(size_t bytes) { return bytes && bytes % kHugePageBytes == 0; }

}  // namespace
}  // namespace emu

using emu::fail;

EMU_API aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void* wanted,
                                        uint64_t) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(address);
  if (!bytes) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtReserveMemAddress: size is 0");
  emu::mark_in_use();
  size_t rounded = emu::round_up(bytes, emu::kHugePageBytes);
  void* at = emu::AddressSpace::instance().reserve(rounded, emu::kHugePageBytes, wanted);
  if (!at) {
    return fail(
        ACL_ERROR_RT_MEMORY_ALLOCATION,
        "aclrtReserveMemAddress: no address space left for " + std::to_string(bytes) + " bytes");
  }
  emu::register_reservation(at, rounded);
  *address = at;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtReleaseMemAddress(void* address) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(address);
  bool has_mappings = false;
  size_t bytes = emu::forget_reservation(address, &has_mappings);
  if (!bytes) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "aclrtReleaseMemAddress: the address is not the start of a reservation");
  }
  if (has_mappings) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "aclrtReleaseMemAddress: memory is still mapped there, call aclrtUnmapMem first");
  }
  emu::AddressSpace::instance().release(address, bytes);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes,
                                     const aclrtPhysicalMemProp* properties, uint64_t) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(handle);
  EMU_REQUIRE_NOT_NULL(properties);
  if (properties->location.type != ACL_MEM_LOCATION_TYPE_DEVICE) {
    return emu::fail_unsupported(__func__,
                                 "physical memory of the host (location type is not "
                                 "ACL_MEM_LOCATION_TYPE_DEVICE)");
  }
  if (!emu::is_page_multiple(bytes)) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMallocPhysical: size " + std::to_string(bytes) +
                                                " is not a multiple of the granularity, 2 MiB");
  }
  int index = static_cast<int>(properties->location.id);
  emu::Device* device = emu::find_device(index, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  if (!device->take_memory(bytes)) return emu::fail_out_of_memory(__func__, index, bytes);
  auto offset = emu::PhysicalStore::instance().take(bytes);
  if (!offset) {
    device->give_back_memory(bytes);
    return fail(
        ACL_ERROR_RT_MEMORY_ALLOCATION,
        std::string("aclrtMallocPhysical: the host has no memory left: ") + std::strerror(errno));
  }
  *handle =
      emu::physical_memory().insert(std::make_shared<emu::PhysicalMemory>(*device, *offset, bytes));
  return ACL_SUCCESS;
}

EMU_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  EMU_ENTER();
  if (!emu::physical_memory().erase(handle)) {
    return emu::physical_memory().refuse(__func__, handle);
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclrtMapMem(void* address, size_t bytes, size_t offset, aclrtDrvMemHandle handle,
                             uint64_t) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(address);
  auto memory = emu::physical_memory().find(handle);
  if (!memory) return emu::physical_memory().refuse(__func__, handle);
  if (!emu::is_page_multiple(bytes) || offset > memory->bytes() ||
      memory->bytes() - offset < bytes) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "aclrtMapMem: size " + std::to_string(bytes) + " at offset " +
                    std::to_string(offset) + " does not fit the handle's " +
                    std::to_string(memory->bytes()) + " bytes in units of 2 MiB");
  }
  if (!emu::add_mapping(address, bytes, memory->device().index())) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "aclrtMapMem: the range is not reserved throughout, or is mapped already");
  }
  if (!emu::AddressSpace::instance().map_file(address, bytes, emu::PhysicalStore::instance().file(),
                                              memory->offset() + offset)) {
    emu::remove_mapping(__func__, address);
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                std::string("aclrtMapMem: ") + std::strerror(errno));
  }
  std::lock_guard lock(emu::mapped().mutex);
  emu::mapped().memory[address] = std::move(memory);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtUnmapMem(void* address) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(address);
  size_t bytes = emu::remove_mapping(__func__, address);
  if (!bytes) {
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "aclrtUnmapMem: the address is not the start of a mapping");
  }
  emu::AddressSpace::instance().decommit(address, bytes);
  std::shared_ptr<emu::PhysicalMemory> released;
  std::lock_guard lock(emu::mapped().mutex);
  auto found = emu::mapped().memory.find(address);
  if (found != emu::mapped().memory.end()) {
    released = std::move(found->second);
    emu::mapped().memory.erase(found);
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp*, aclrtMemGranularityOptions,
                                                  size_t* granularity) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(granularity);
  *granularity = emu::kHugePageBytes;
  return ACL_SUCCESS;
}
