// SPDX-License-Identifier: Apache-2.0
// libhccl for a world of one rank, where every collective is a copy in stream order. Larger
// worlds are refused when their communicator is made. The real thing replaces this file.
#include "hccl/hccl.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "runtime/api.h"
#include "runtime/handles.h"

namespace emu {
namespace {

struct Communicator {
  std::string name;
};

HandleTable<Communicator>& communicators() {
  static auto* table = new HandleTable<Communicator>(HandleKind::kCommunicator);
  return *table;
}

HcclResult fail_hccl(HcclResult result, const std::string& why) {
  fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, why);
  return result;
}

std::string next_name() {
  static std::atomic<int> next{0};
  return "emulated_hccl_" + std::to_string(getpid()) + "_" + std::to_string(next++);
}

HcclResult create(const char* api, uint32_t ranks, uint32_t rank, const std::string& name,
                  HcclComm* communicator) {
  if (!communicator) return fail_hccl(HCCL_E_PTR, std::string(api) + ": comm is null");
  if (ranks != 1 || rank != 0) {
    return fail_hccl(HCCL_E_NOT_SUPPORT,
                     std::string(api) + ": a communicator of " + std::to_string(ranks) +
                         " ranks was asked for, the emulator has worlds of one rank only (run "
                         "with tensor_parallel_size=1)");
  }
  *communicator =
      communicators().insert(std::make_shared<Communicator>(Communicator{name.substr(0, 127)}));
  return HCCL_SUCCESS;
}

// Bytes of one element; 0 if the type is unknown.
size_t element_bytes(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
    case HCCL_DATA_TYPE_HIF8:
    case HCCL_DATA_TYPE_FP8E4M3:
    case HCCL_DATA_TYPE_FP8E5M2:
    case HCCL_DATA_TYPE_FP8E8M0:
      return 1;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16:
      return 2;
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_UINT32:
    case HCCL_DATA_TYPE_FP32:
      return 4;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64:
      return 8;
    case HCCL_DATA_TYPE_INT128:
      return 16;
    default:
      return 0;
  }
}

// Every collective of a world of one: `count` elements from `source` to `destination`, each at its
// own offset in elements.
HcclResult copy(const char* name, HcclComm communicator, const void* source, uint64_t source_offset,
                const void* destination, uint64_t destination_offset, uint64_t count,
                HcclDataType type, aclrtStream stream) {
  if (!communicators().find(communicator)) {
    return fail_hccl(HCCL_E_PARA, std::string(name) + ": " + communicators().explain(communicator));
  }
  size_t unit = element_bytes(type);
  if (!unit) {
    return fail_hccl(HCCL_E_PARA,
                     std::string(name) + ": unknown data type " + std::to_string(type));
  }
  if (count && (!source || !destination)) {
    return fail_hccl(HCCL_E_PTR, std::string(name) + ": a buffer is null");
  }
  const void* from = static_cast<const char*>(source) + source_offset * unit;
  const void* to = static_cast<const char*>(destination) + destination_offset * unit;
  size_t bytes = count * unit;
  Task task{name,
            TaskKind::kCollective,
            [from, to, bytes] {
              if (from != to) std::memmove(host_alias(to), host_alias(from), bytes);
            },
            {{from, bytes, false}, {to, bytes, true}}};
  return submit(stream, std::move(task)) ? HCCL_E_RUNTIME : HCCL_SUCCESS;
}

uint64_t first(const void* array) { return *static_cast<const uint64_t*>(array); }

HcclResult refuse_peer(const char* name) {
  return fail_hccl(HCCL_E_NOT_SUPPORT,
                   std::string(name) + ": there is no other rank in a world of one");
}

}  // namespace
}  // namespace emu

EMU_API HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  if (!root) return HCCL_E_PTR;
  std::memset(root, 0, sizeof *root);
  std::string name = emu::next_name();
  std::memcpy(root->internal, name.data(), name.size());
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* root, uint32_t rank,
                                        HcclComm* communicator) {
  if (!root) return HCCL_E_PTR;
  return emu::create(__func__, ranks, rank, root->internal, communicator);
}

EMU_API HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* root,
                                              uint32_t rank, const HcclCommConfig* config,
                                              HcclComm* communicator) {
  if (!root || !config) return HCCL_E_PTR;
  const char* name = *config->hcclCommName ? config->hcclCommName : root->internal;
  return emu::create(__func__, ranks, rank, name, communicator);
}

EMU_API HcclResult HcclCommInitAll(uint32_t ranks, int32_t*, HcclComm* communicators) {
  return emu::create(__func__, ranks, 0, emu::next_name(), communicators);
}

EMU_API HcclResult HcclCreateSubCommConfig(HcclComm*, uint32_t ranks, uint32_t*, uint64_t,
                                           uint32_t rank, HcclCommConfig*, HcclComm* communicator) {
  return emu::create(__func__, ranks, rank, emu::next_name(), communicator);
}

EMU_API HcclResult HcclCommDestroy(HcclComm communicator) {
  if (emu::communicators().erase(communicator)) return HCCL_SUCCESS;
  return emu::fail_hccl(HCCL_E_PARA,
                        "HcclCommDestroy: " + emu::communicators().explain(communicator));
}

EMU_API HcclResult HcclGetCommName(HcclComm communicator, char* name) {
  auto found = emu::communicators().find(communicator);
  if (!found || !name) return HCCL_E_PARA;
  std::memcpy(name, found->name.c_str(), found->name.size() + 1);
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetRankSize(HcclComm communicator, uint32_t* ranks) {
  if (!emu::communicators().find(communicator) || !ranks) return HCCL_E_PARA;
  *ranks = 1;
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetRankId(HcclComm communicator, uint32_t* rank) {
  if (!emu::communicators().find(communicator) || !rank) return HCCL_E_PARA;
  *rank = 0;
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetCommAsyncError(HcclComm communicator, HcclResult* error) {
  if (!emu::communicators().find(communicator) || !error) return HCCL_E_PARA;
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}

EMU_API const char* HcclGetErrorString(HcclResult result) {
  return result == HCCL_SUCCESS ? "no error" : "error of the emulated HCCL, see aclGetRecentErrMsg";
}

EMU_API uint32_t HcclGetCommConfigCapability() { return HCCL_COMM_CONFIG_RESERVED; }

EMU_API HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }

EMU_API HcclResult HcclGetConfig(HcclConfig, HcclConfigValue* value) {
  if (!value) return HCCL_E_PTR;
  value->value = 1;  // deterministic
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, HcclDataType type,
                                 HcclReduceOp, HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, count, type, stream);
}

EMU_API HcclResult HcclReduce(void* send, void* receive, uint64_t count, HcclDataType type,
                              HcclReduceOp, uint32_t, HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, count, type, stream);
}

EMU_API HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t,
                                 HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, buffer, 0, buffer, 0, count, type, stream);
}

EMU_API HcclResult HcclAllGather(void* send, void* receive, uint64_t count, HcclDataType type,
                                 HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, count, type, stream);
}

EMU_API HcclResult HcclAllGatherV(void* send, uint64_t count, void* receive, const void*,
                                  const void* displacements, HcclDataType type,
                                  HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, emu::first(displacements), count, type,
                   stream);
}

EMU_API HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, HcclDataType type,
                                     HcclReduceOp, HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, count, type, stream);
}

EMU_API HcclResult HcclReduceScatterV(void* send, const void*, const void* displacements,
                                      void* receive, uint64_t count, HcclDataType type,
                                      HcclReduceOp, HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, emu::first(displacements), receive, 0, count, type,
                   stream);
}

EMU_API HcclResult HcclScatter(void* send, void* receive, uint64_t count, HcclDataType type,
                               uint32_t, HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, count, type, stream);
}

EMU_API HcclResult HcclAlltoAll(const void* send, uint64_t count, HcclDataType type,
                                const void* receive, uint64_t, HcclDataType, HcclComm communicator,
                                aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, count, type, stream);
}

EMU_API HcclResult HcclAlltoAllV(const void* send, const void* counts, const void* displacements,
                                 HcclDataType type, const void* receive, const void*,
                                 const void* receive_displacements, HcclDataType,
                                 HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, send, emu::first(displacements), receive,
                   emu::first(receive_displacements), emu::first(counts), type, stream);
}

EMU_API HcclResult HcclAlltoAllVC(const void* send, const void* count_matrix, HcclDataType type,
                                  const void* receive, HcclDataType, HcclComm communicator,
                                  aclrtStream stream) {
  return emu::copy(__func__, communicator, send, 0, receive, 0, emu::first(count_matrix), type,
                   stream);
}

EMU_API HcclResult HcclBarrier(HcclComm communicator, aclrtStream stream) {
  return emu::copy(__func__, communicator, nullptr, 0, nullptr, 0, 0, HCCL_DATA_TYPE_INT8, stream);
}

EMU_API HcclResult HcclSend(void*, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream) {
  return emu::refuse_peer(__func__);
}

EMU_API HcclResult HcclRecv(void*, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream) {
  return emu::refuse_peer(__func__);
}

EMU_API HcclResult HcclBatchSendRecv(HcclSendRecvItem*, uint32_t, HcclComm, aclrtStream) {
  return emu::refuse_peer(__func__);
}

// Groups matter to sends and receives only.
EMU_API HcclResult HcclGroupStart() { return HCCL_SUCCESS; }

EMU_API HcclResult HcclGroupEnd() { return HCCL_SUCCESS; }

EMU_API HcclResult HcclCommSuspend(HcclComm) { return HCCL_SUCCESS; }

EMU_API HcclResult HcclCommResume(HcclComm) { return HCCL_SUCCESS; }
