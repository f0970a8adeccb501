// SPDX-License-Identifier: Apache-2.0
// Descriptions that the legacy operator path builds before it fails (op_compiler/), and kernel
// binaries, which cannot run here: every function that would load or launch one names itself.
#include <vector>

#include "runtime/error.h"
#include "runtime/handles.h"
#include "runtime/process.h"

namespace emu {
namespace {

struct TensorDescription {
  aclDataType data_type;
  std::vector<int64_t> dims;
  aclFormat format;
  std::string name = {};
};

struct DataBuffer {
  void* address;
  size_t bytes;
};

HandleTable<TensorDescription>& descriptions() {
  static auto* table = new HandleTable<TensorDescription>(HandleKind::kTensorDescription);
  return *table;
}

HandleTable<DataBuffer>& buffers() {
  static auto* table = new HandleTable<DataBuffer>(HandleKind::kDataBuffer);
  return *table;
}

constexpr const char* kNoKernels =
    "kernel binaries hold Ascend machine code; only aclnn operators can run here";

}  // namespace
}  // namespace emu

using emu::buffers;
using emu::descriptions;

EMU_API aclTensorDesc* aclCreateTensorDesc(aclDataType data_type, int count, const int64_t* dims,
                                           aclFormat format) {
  if (count < 0 || (count > 0 && !dims)) {
    emu::fail(ACL_ERROR_RT_PARAM_INVALID, "aclCreateTensorDesc: dims is null or numDims negative");
    return nullptr;
  }
  return static_cast<aclTensorDesc*>(descriptions().insert(std::make_shared<emu::TensorDescription>(
      emu::TensorDescription{data_type, {dims, dims + count}, format})));
}

EMU_API void aclDestroyTensorDesc(const aclTensorDesc* description) {
  if (!descriptions().erase(description)) descriptions().refuse(__func__, description);
}

EMU_API aclError aclGetTensorDescDimV2(const aclTensorDesc* description, size_t index,
                                       int64_t* size) {
  EMU_REQUIRE_NOT_NULL(size);
  auto found = descriptions().find(description);
  if (!found) return descriptions().refuse(__func__, description);
  if (index >= found->dims.size()) {
    return emu::fail(ACL_ERROR_RT_PARAM_INVALID, "aclGetTensorDescDimV2: index " +
                                                     std::to_string(index) + " of " +
                                                     std::to_string(found->dims.size()));
  }
  *size = found->dims[index];
  return ACL_SUCCESS;
}

EMU_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* description) {
  auto found = descriptions().find(description);
  if (found) return found->format;
  descriptions().refuse(__func__, description);
  return ACL_FORMAT_UNDEFINED;
}

EMU_API size_t aclGetTensorDescNumDims(const aclTensorDesc* description) {
  auto found = descriptions().find(description);
  if (found) return found->dims.size();
  descriptions().refuse(__func__, description);
  return 0;
}

EMU_API aclDataType aclGetTensorDescType(const aclTensorDesc* description) {
  auto found = descriptions().find(description);
  if (found) return found->data_type;
  descriptions().refuse(__func__, description);
  return ACL_DT_UNDEFINED;
}

EMU_API void aclSetTensorDescName(aclTensorDesc* description, const char* name) {
  auto found = descriptions().find(description);
  if (found && name) found->name = name;
}

EMU_API aclError aclSetTensorFormat(aclTensorDesc* description, aclFormat) {
  return descriptions().find(description) ? ACL_SUCCESS
                                          : descriptions().refuse(__func__, description);
}

EMU_API aclError aclSetTensorPlaceMent(aclTensorDesc* description, aclMemType) {
  return descriptions().find(description) ? ACL_SUCCESS
                                          : descriptions().refuse(__func__, description);
}

EMU_API aclError aclSetTensorShape(aclTensorDesc* description, int, const int64_t*) {
  return descriptions().find(description) ? ACL_SUCCESS
                                          : descriptions().refuse(__func__, description);
}

EMU_API aclDataBuffer* aclCreateDataBuffer(void* address, size_t bytes) {
  return static_cast<aclDataBuffer*>(
      buffers().insert(std::make_shared<emu::DataBuffer>(emu::DataBuffer{address, bytes})));
}

EMU_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  return buffers().erase(buffer) ? ACL_SUCCESS : buffers().refuse(__func__, buffer);
}

#define EMU_REFUSED(name, ...)                            \
  EMU_API aclError name(__VA_ARGS__) {                    \
    EMU_ENTER();                                          \
    return emu::fail_unsupported(#name, emu::kNoKernels); \
  }

EMU_REFUSED(aclrtBinaryGetFunction, const aclrtBinHandle, const char*, aclrtFuncHandle*)
EMU_REFUSED(aclrtBinaryLoadFromData, const void*, size_t, const aclrtBinaryLoadOptions*,
            aclrtBinHandle*)
EMU_REFUSED(aclrtGetFunctionAddr, aclrtFuncHandle, void**, void**)
EMU_REFUSED(aclrtGetHardwareSyncAddr, void**)
EMU_REFUSED(aclrtLaunchKernelWithHostArgs, aclrtFuncHandle, uint32_t, aclrtStream,
            aclrtLaunchKernelCfg*, void*, size_t, aclrtPlaceHolderInfo*, size_t)
EMU_REFUSED(rtDevBinaryRegister, const void*, void**)
EMU_REFUSED(rtFunctionRegister, void*, const void*, const char*, const void*, uint32_t)
EMU_REFUSED(rtGetC2cCtrlAddr, uint64_t*, uint32_t*)
EMU_REFUSED(rtKernelLaunch, const void*, uint32_t, void*, uint32_t, void*, void*)
