// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <algorithm>
#include <cstring>

#include "runtime/config.h"
#include "runtime/error.h"
#include "runtime/handles.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace emu {
namespace {

thread_local Device* thread_device = nullptr;

// Never destroyed: workers may outlive static destructors.
std::vector<std::unique_ptr<Device>>& devices() {
  static auto* instance = [] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    for (int physical_id : visible_devices()) {
      made->push_back(std::make_unique<Device>(static_cast<int>(made->size()), physical_id,
                                               config().hbm_bytes));
    }
    return made;
  }();
  return *instance;
}

struct FailureListeners {
  std::mutex mutex;
  std::vector<std::function<void(int, const std::string&)>> all;
};

FailureListeners& failure_listeners() {
  static auto* instance = new FailureListeners;
  return *instance;
}

void tell_listeners(int device, const std::string& why) {
  FailureListeners& listeners = failure_listeners();
  std::lock_guard lock(listeners.mutex);
  for (const auto& listener : listeners.all) listener(device, why);
}

struct Context {
  Device* device;
};

HandleTable<Context>& contexts() {
  static auto* table = new HandleTable<Context>(HandleKind::kContext);
  return *table;
}

// One primary context per device: torch_npu knows no other.
void* context_of(Device* device) {
  static std::mutex mutex;
  static auto* handles = new std::vector<void*>;
  std::lock_guard lock(mutex);
  handles->resize(devices().size(), nullptr);
  void*& handle = (*handles)[static_cast<size_t>(device->index())];
  if (!handle) handle = contexts().insert(std::make_shared<Context>(Context{device}));
  return handle;
}

}  // namespace

bool Device::take_memory(size_t bytes) {
  size_t used = used_bytes_.load();
  do {
    if (bytes > hbm_bytes_ || used > hbm_bytes_ - bytes) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  size_t now = used + bytes;
  size_t peak = peak_bytes_.load();
  while (peak < now && !peak_bytes_.compare_exchange_weak(peak, now)) {
  }
  return true;
}

void Device::set_failed(const std::string& message, aclError code) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    std::fprintf(stderr, "[ascend-emulator] device %d failed: %s\n", index_, message.c_str());
    failure_ = message;
    failure_code_ = code;
  }
  tell_listeners(index_, message);  // before tasks give up because of it
  failed_.store(true, std::memory_order_release);
}

aclError Device::report_failure(const char* api) const {
  std::lock_guard lock(mutex_);
  return fail(failure_code_,
              std::string(api) + ": device " + std::to_string(index_) + " failed: " + failure_);
}

void Device::clear_failure() {
  std::lock_guard lock(mutex_);
  failed_ = false;
  failure_.clear();
}

std::shared_ptr<Stream> Device::new_stream() {
  mark_in_use();
  auto ticket = take(*this, Resource::kStream);
  if (!ticket) return nullptr;
  std::lock_guard lock(mutex_);
  auto stream = std::make_shared<Stream>(*this, stream_ordinal_++, std::move(*ticket));
  streams_.push_back(stream);
  return stream;
}

std::shared_ptr<Stream> Device::default_stream() {
  {
    std::lock_guard lock(mutex_);
    if (default_stream_) return default_stream_;
  }
  auto stream = new_stream();
  if (!stream) {  // a device has its default stream from the start, whatever was
                  // created since
    std::lock_guard lock(mutex_);
    if (!default_stream_) {
      default_stream_ = std::make_shared<Stream>(*this, stream_ordinal_++, Ticket());
      streams_.push_back(default_stream_);
    }
    return default_stream_;
  }
  std::shared_ptr<Stream> kept;
  {
    std::lock_guard lock(mutex_);
    if (!default_stream_) default_stream_ = stream;
    kept = default_stream_;
  }
  if (kept != stream) {  // another thread was quicker
    forget_stream(stream.get());
    stream->stop(Stream::Queued::kRun);
  }
  return kept;
}

void Device::forget_stream(const Stream* stream) {
  std::lock_guard lock(mutex_);
  std::erase_if(streams_, [&](const auto& each) { return each.get() == stream; });
  if (default_stream_.get() == stream) default_stream_ = nullptr;
}

std::vector<std::shared_ptr<Stream>> Device::streams() const {
  std::lock_guard lock(mutex_);
  return streams_;
}

int device_count() {
  return static_cast<int>(in_use() ? devices().size() : visible_devices().size());
}

Device* find_device(int index, const char* api) {
  mark_in_use();
  if (index < 0 || static_cast<size_t>(index) >= devices().size()) {
    fail(ACL_ERROR_RT_INVALID_DEVICEID,
         std::string(api) + ": there is no device " + std::to_string(index) +
             ", this process has " + std::to_string(devices().size()) +
             " (ASCEND_EMU_DEVICES and ASCEND_RT_VISIBLE_DEVICES decide)");
    return nullptr;
  }
  return devices()[static_cast<size_t>(index)].get();
}

Device* current_device(const char* api) {
  if (!thread_device && default_device() >= 0) thread_device = find_device(default_device(), api);
  if (!thread_device) {
    fail(ACL_ERROR_RT_CONTEXT_NULL,
         std::string(api) + ": this thread has no device, call aclrtSetDevice first");
  }
  return thread_device;
}

int thread_device_index() { return thread_device ? thread_device->index() : -1; }

void adopt_device(Device* device) { thread_device = device; }

void on_device_failure(std::function<void(int device, const std::string& why)> listener) {
  FailureListeners& listeners = failure_listeners();
  std::lock_guard lock(listeners.mutex);
  listeners.all.push_back(std::move(listener));
}

}  // namespace emu

using emu::Device;

EMU_API aclError aclrtGetDeviceCount(uint32_t* count) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(count);
  *count = static_cast<uint32_t>(emu::device_count());
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSetDevice(int32_t device_id) {
  EMU_ENTER();
  Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  device->active = true;
  emu::adopt_device(device);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetDevice(int32_t* device_id) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(device_id);
  Device* device = emu::current_device(__func__);
  if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
  *device_id = device->index();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtResetDevice(int32_t device_id) {
  EMU_ENTER();
  Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  // Work that can end is let end; what waits for ever must not keep the process.
  constexpr int kDrainTimeoutMs = 2000;
  for (const auto& stream : device->streams()) {
    if (!device->failed()) stream->wait(kDrainTimeoutMs, __func__);
  }
  device->active = false;
  device->clear_failure();
  if (emu::thread_device == device) emu::adopt_device(nullptr);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtResetDeviceForce(int32_t device_id) { return aclrtResetDevice(device_id); }

EMU_API aclError aclrtGetCurrentContext(aclrtContext* context) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(context);
  Device* device = emu::current_device(__func__);
  if (!device) return ACL_ERROR_RT_CONTEXT_NULL;
  *context = emu::context_of(device);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSetCurrentContext(aclrtContext context) {
  EMU_ENTER();
  auto found = emu::contexts().find(context);
  if (!found) return emu::contexts().refuse(__func__, context);
  emu::adopt_device(found->device);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtCreateContext(aclrtContext* context, int32_t device_id) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(context);
  Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  device->active = true;
  emu::adopt_device(device);
  *context = emu::contexts().insert(std::make_shared<emu::Context>(emu::Context{device}));
  return ACL_SUCCESS;
}

EMU_API aclError aclrtDestroyContext(aclrtContext context) {
  EMU_ENTER();
  auto found = emu::contexts().find(context);
  if (!found) return emu::contexts().refuse(__func__, context);
  if (emu::context_of(found->device) == context) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID,
                     "aclrtDestroyContext: a device's primary context cannot be destroyed, call "
                     "aclrtResetDevice");
  }
  emu::contexts().erase(context);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetPrimaryCtxState(int32_t device_id, uint32_t* flags, int32_t* active) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(active);
  if (flags) *flags = 0;
  *active = 0;
  if (!emu::in_use()) return ACL_SUCCESS;
  Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  *active = device->active;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetLogicDevIdByUserDevId(const int32_t user_id, int32_t* const logic_id) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(logic_id);
  Device* device = emu::find_device(user_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  *logic_id = device->physical_id();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtDeviceCanAccessPeer(int32_t* can_access, int32_t device_id, int32_t peer_id) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(can_access);
  if (!emu::find_device(device_id, __func__) || !emu::find_device(peer_id, __func__)) {
    return ACL_ERROR_RT_INVALID_DEVICEID;
  }
  *can_access = device_id != peer_id;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtDeviceEnablePeerAccess(int32_t peer_id, uint32_t) {
  EMU_ENTER();
  return emu::find_device(peer_id, __func__) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_DEVICEID;
}

EMU_API aclError aclrtDeviceTaskAbort(int32_t device_id, uint32_t) {
  EMU_ENTER();
  Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  for (const auto& stream : device->streams()) stream->drop_queued();
  device->clear_failure();
  return ACL_SUCCESS;
}
