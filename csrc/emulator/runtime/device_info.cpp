// SPDX-License-Identifier: Apache-2.0
// Properties of the emulated chip, and the options of devices, streams and the system that change
// nothing here but are remembered where they can be read back.
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "runtime/config.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/process.h"
#include "runtime/stream.h"

namespace emu {
namespace {

// Ascend 910B3 (Atlas A2): 20 AI Cores of one cube and two vector units, 192 MiB of L2, 192 KiB of
// unified buffer per vector unit. Source: the platform configuration files of CANN.
constexpr int64_t kCubeCores = 20;
constexpr int64_t kVectorCores = 40;
constexpr int64_t kAiCpuCores = 6;
constexpr int64_t kL2Bytes = int64_t{192} << 20;
constexpr int64_t kUnifiedBufferBytes = int64_t{192} << 10;
constexpr int64_t kNpuArch = 2201;

constexpr aclCannAttr kAttributes[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16};

uint32_t core_limit(aclrtDevResLimitType type) {
  return type == ACL_RT_DEV_RES_CUBE_CORE ? kCubeCores : kVectorCores;
}

// One word per option, set and read back. The options change nothing in the arithmetic here.
std::atomic<int64_t>& system_option(aclSysParamOpt option) {
  static std::atomic<int64_t> values[8];
  return values[static_cast<size_t>(option) % 8];
}

}  // namespace
}  // namespace emu

EMU_API const char* aclrtGetSocName() { return emu::config().soc.c_str(); }

EMU_API aclError aclrtGetDeviceInfo(uint32_t device_id, aclrtDevAttr attribute, int64_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  const emu::Device* device = emu::find_device(static_cast<int>(device_id), __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
      *value = emu::kAiCpuCores;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
      *value = emu::kCubeCores;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      *value = emu::kVectorCores;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE:
      *value = emu::kUnifiedBufferBytes;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      *value = static_cast<int64_t>(device->hbm_bytes());
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      *value = emu::kL2Bytes;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_SMP_ID:
    case ACL_DEV_ATTR_IS_VIRTUAL:
    case ACL_DEV_ATTR_HD_CONNECT_TYPE:
      *value = 0;
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_PHY_CHIP_ID:
      *value = device->physical_id();
      return ACL_SUCCESS;
    case ACL_DEV_ATTR_NPU_ARCH:
      *value = emu::kNpuArch;
      return ACL_SUCCESS;
    default:
      return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtGetDeviceInfo: attribute " +
                                                             std::to_string(attribute) +
                                                             " is not known to the emulator");
  }
}

EMU_API aclError aclGetDeviceCapability(uint32_t device_id, aclDeviceInfo info, int64_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  if (!emu::find_device(static_cast<int>(device_id), __func__)) {
    return ACL_ERROR_RT_INVALID_DEVICEID;
  }
  switch (info) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
      *value = emu::kCubeCores;
      return ACL_SUCCESS;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
      *value = emu::kVectorCores;
      return ACL_SUCCESS;
    case ACL_DEVICE_INFO_L2_SIZE:
      *value = emu::kL2Bytes;
      return ACL_SUCCESS;
    default:
      return emu::fail(ACL_ERROR_RT_PARAM_INVALID,
                       "aclGetDeviceCapability: unknown information " + std::to_string(info));
  }
}

EMU_API aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(pid);
  *pid = getpid();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtDeviceGetUuid(int32_t device_id, aclrtUuid* uuid) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(uuid);
  const emu::Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  *uuid = {};
  std::memcpy(uuid->bytes, "emulated-npu", 12);
  uuid->bytes[15] = static_cast<char>(device->physical_id());
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetDeviceUtilizationRate(int32_t device_id, aclrtUtilizationInfo* info) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(info);
  const emu::Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  bool is_busy = false;
  for (const auto& stream : device->streams()) is_busy |= !stream->idle();
  *info = {};
  info->cubeUtilization = info->vectorUtilization = is_busy ? 100 : 0;
  info->memoryUtilization = static_cast<int32_t>(device->used_bytes() * 100 / device->hbm_bytes());
  return ACL_SUCCESS;
}

EMU_API aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(list);
  EMU_REQUIRE_NOT_NULL(count);
  *list = emu::kAttributes;
  *count = std::size(emu::kAttributes);
  return ACL_SUCCESS;
}

EMU_API aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  *value = attribute == ACL_CANN_ATTR_INF_NAN || attribute == ACL_CANN_ATTR_BF16;
  return ACL_SUCCESS;
}

EMU_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(version);
  *version = {};
  std::strncpy(version->version, emu::config().cann_version.c_str(), sizeof version->version - 1);
  return ACL_SUCCESS;
}

EMU_API aclError aclsysGetVersionStr(char*, char* version) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(version);
  std::strcpy(version, emu::config().cann_version.c_str());  // config() bounds its length
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(major);
  EMU_REQUIRE_NOT_NULL(minor);
  EMU_REQUIRE_NOT_NULL(patch);
  *major = ACL_MAJOR_VERSION;
  *minor = ACL_MINOR_VERSION;
  *patch = ACL_PATCH_VERSION;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetRunMode(aclrtRunMode* mode) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(mode);
  *mode = ACL_HOST;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  EMU_ENTER();
  if (mode == ACL_RT_OVERFLOW_MODE_SATURATION) {
    return emu::fail_unsupported(__func__, "arithmetic follows IEEE 754 (INF and NAN) always");
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  EMU_ENTER();
  emu::system_option(option) = value;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  EMU_ENTER();
  emu::system_option(option) = value;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  *value = emu::system_option(option);
  return ACL_SUCCESS;
}

// Core limits: what a thread, stream or device may use. Nothing is partitioned here.
EMU_API aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  *value = emu::core_limit(type);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetStreamResLimit(aclrtStream, aclrtDevResLimitType type, uint32_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  *value = emu::core_limit(type);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(value);
  *value = emu::core_limit(type);
  return ACL_SUCCESS;
}

#define EMU_WITHOUT_EFFECT(name, ...)  \
  EMU_API aclError name(__VA_ARGS__) { \
    EMU_ENTER();                       \
    return ACL_SUCCESS;                \
  }

EMU_WITHOUT_EFFECT(aclrtSetDeviceResLimit, int32_t, aclrtDevResLimitType, uint32_t)
EMU_WITHOUT_EFFECT(aclrtResetDeviceResLimit, int32_t)
EMU_WITHOUT_EFFECT(aclrtSetStreamResLimit, aclrtStream, aclrtDevResLimitType, uint32_t)
EMU_WITHOUT_EFFECT(aclrtResetStreamResLimit, aclrtStream)
EMU_WITHOUT_EFFECT(aclrtUseStreamResInCurrentThread, aclrtStream)
EMU_WITHOUT_EFFECT(aclrtUnuseStreamResInCurrentThread, aclrtStream)

// Hardware memory errors: there are none.
EMU_API aclError aclrtGetMemUceInfo(int32_t, aclrtMemUceInfo*, size_t, size_t* count) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(count);
  *count = 0;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetErrorVerbose(int32_t device_id, aclrtErrorInfo* info) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(info);
  const emu::Device* device = emu::find_device(device_id, __func__);
  if (!device) return ACL_ERROR_RT_INVALID_DEVICEID;
  *info = {};
  info->errorType = device->failed() ? ACL_RT_ERROR_AICORE : ACL_RT_NO_ERROR;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtMemUceRepair(int32_t, aclrtMemUceInfo*, size_t) {
  EMU_ENTER();
  return emu::fail_unsupported(__func__, "there are no memory errors to repair");
}

EMU_API aclError aclrtRepairError(int32_t, const aclrtErrorInfo*) {
  EMU_ENTER();
  return emu::fail_unsupported(__func__, "a failed device is recovered by aclrtResetDevice");
}
