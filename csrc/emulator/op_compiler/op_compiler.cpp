// SPDX-License-Identifier: Apache-2.0
// libacl_op_compiler: the legacy operator path (aclop). Options and attributes are accepted, since
// torch_npu sets them for every process. Executing an operator makes the device unusable for good:
// torch_npu would only log the failure on its queue thread and go on with wrong results.
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "acl/acl_op_compiler.h"
#include "runtime/api.h"
#include "runtime/handles.h"

namespace emu {
namespace {

// What is in an attribute list is never looked at: only that the handle is one.
struct Attributes {};

HandleTable<Attributes>& attributes() {
  static auto* table = new HandleTable<Attributes>(HandleKind::kOperatorAttributes);
  return *table;
}

struct Options {
  std::mutex mutex;
  std::map<aclCompileOpt, std::string> values;
};

Options& options() {
  static auto* instance = new Options;
  return *instance;
}

aclError refuse(const char* operator_type) {
  std::string name = operator_type ? operator_type : "(null)";
  std::string why = "the legacy operator (aclop) '" + name +
                    "' was launched, which the emulator does not have. torch_npu takes this path "
                    "where it finds no aclnn operator for a call, or for tensors in a private "
                    "format. Add the aclnn operator to csrc/emulator/ops, or avoid the call";
  poison(why);
  return fail(ACL_ERROR_OP_NOT_FOUND, why);
}

aclError set_attribute(const char* api, const aclopAttr* handle) {
  return attributes().find(handle) ? ACL_SUCCESS : attributes().refuse(api, handle);
}

}  // namespace
}  // namespace emu

EMU_API aclopAttr* aclopCreateAttr() {
  return static_cast<aclopAttr*>(emu::attributes().insert(std::make_shared<emu::Attributes>()));
}

EMU_API void aclopDestroyAttr(const aclopAttr* attribute) {
  if (!emu::attributes().erase(attribute)) emu::attributes().refuse(__func__, attribute);
}

#define EMU_SET_ATTRIBUTE(name, ...)                                      \
  EMU_API aclError name(aclopAttr* attribute, const char*, __VA_ARGS__) { \
    return emu::set_attribute(#name, attribute);                          \
  }

EMU_SET_ATTRIBUTE(aclopSetAttrBool, uint8_t)
EMU_SET_ATTRIBUTE(aclopSetAttrDataType, aclDataType)
EMU_SET_ATTRIBUTE(aclopSetAttrFloat, float)
EMU_SET_ATTRIBUTE(aclopSetAttrInt, int64_t)
EMU_SET_ATTRIBUTE(aclopSetAttrListBool, int, const uint8_t*)
EMU_SET_ATTRIBUTE(aclopSetAttrListFloat, int, const float*)
EMU_SET_ATTRIBUTE(aclopSetAttrListInt, int, const int64_t*)
EMU_SET_ATTRIBUTE(aclopSetAttrListListInt, int, const int*, const int64_t* const[])
EMU_SET_ATTRIBUTE(aclopSetAttrString, const char*)

EMU_API aclError aclopCompileAndExecute(const char* type, int, const aclTensorDesc* const[],
                                        const aclDataBuffer* const[], int,
                                        const aclTensorDesc* const[], aclDataBuffer* const[],
                                        const aclopAttr*, aclopEngineType, aclopCompileType,
                                        const char*, aclrtStream) {
  return emu::refuse(type);
}

EMU_API aclError aclopCompileAndExecuteV2(const char* type, int, aclTensorDesc*[], aclDataBuffer*[],
                                          int, aclTensorDesc*[], aclDataBuffer*[], aclopAttr*,
                                          aclopEngineType, aclopCompileType, const char*,
                                          aclrtStream) {
  return emu::refuse(type);
}

EMU_API aclError aclSetCompileopt(aclCompileOpt option, const char* value) {
  if (!value) return emu::fail(ACL_ERROR_INVALID_PARAM, "aclSetCompileopt: value is null");
  std::lock_guard lock(emu::options().mutex);
  emu::options().values[option] = value;
  return ACL_SUCCESS;
}

EMU_API size_t aclGetCompileoptSize(aclCompileOpt option) {
  std::lock_guard lock(emu::options().mutex);
  return emu::options().values[option].size() + 1;
}

EMU_API aclError aclGetCompileopt(aclCompileOpt option, char* value, size_t bytes) {
  std::lock_guard lock(emu::options().mutex);
  const std::string& text = emu::options().values[option];
  if (!value || bytes <= text.size()) {
    return emu::fail(ACL_ERROR_INVALID_PARAM, "aclGetCompileopt: the buffer is too small");
  }
  std::memcpy(value, text.c_str(), text.size() + 1);
  return ACL_SUCCESS;
}

EMU_API aclGraphDumpOption* aclCreateGraphDumpOpt() {
  emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclCreateGraphDumpOpt is not emulated");
  return nullptr;
}

EMU_API aclError aclDestroyGraphDumpOpt(const aclGraphDumpOption*) {
  return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclDestroyGraphDumpOpt is not emulated");
}

EMU_API aclError aclGenGraphAndDumpForOp(const char* type, int, const aclTensorDesc* const[],
                                         const aclDataBuffer* const[], int,
                                         const aclTensorDesc* const[], aclDataBuffer* const[],
                                         const aclopAttr*, aclopEngineType, const char*,
                                         const aclGraphDumpOption*) {
  return emu::refuse(type);
}

EMU_API aclError aclopStartDumpArgs(uint32_t, const char*) {
  return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclopStartDumpArgs is not emulated");
}

EMU_API aclError aclopStopDumpArgs(uint32_t) {
  return emu::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclopStopDumpArgs is not emulated");
}
