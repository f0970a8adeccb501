// SPDX-License-Identifier: Apache-2.0
// Making, asking about and destroying communicators.
#include <unistd.h>

#include <cstring>
#include <limits>

#include "hccl/communicator.h"
#include "hccl/create.h"
#include "hccl/result.h"
#include "hccl/settings.h"

namespace emu::hccl {
namespace {

// What HcclRootInfo holds.
struct RootInfo {
  char address[kAddressBytes];
  char key[kKeyBytes];
};
static_assert(sizeof(RootInfo) <= sizeof(HcclRootInfo));

std::string unique_name() {
  static std::atomic<int> next{0};
  return "emulated_hccl_" + std::to_string(getpid()) + "_" + std::to_string(next++);
}

Party party_of(const HcclRootInfo& root, uint32_t ranks, uint32_t rank) {
  RootInfo info;
  std::memcpy(&info, root.internal, sizeof info);
  info.address[kAddressBytes - 1] = '\0';
  info.key[kKeyBytes - 1] = '\0';
  return {info.address, info.key, ranks, rank, 0};
}

}  // namespace
}  // namespace emu::hccl

using namespace emu::hccl;

EMU_API HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  if (!root) return refuse(HCCL_E_PTR, "HcclGetRootInfo: rootInfo is null");
  std::string address = local_address();
  if (address.empty()) {
    return refuse(HCCL_E_SYSCALL,
                  std::string("HcclGetRootInfo: no socket to listen on: ") + std::strerror(errno));
  }
  RootInfo info{};
  std::strncpy(info.address, address.c_str(), sizeof info.address - 1);
  std::strncpy(info.key, unique_name().c_str(), sizeof info.key - 1);
  std::memset(root, 0, sizeof *root);
  std::memcpy(root->internal, &info, sizeof info);
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetRootInfoScalable(HcclRootInfo* root) { return HcclGetRootInfo(root); }

EMU_API HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* root, uint32_t rank,
                                        HcclComm* communicator) {
  if (!root) return refuse(HCCL_E_PTR, "HcclCommInitRootInfo: rootInfo is null");
  return create(__func__, party_of(*root, ranks, rank), nullptr, communicator);
}

EMU_API HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* root,
                                              uint32_t rank, const HcclCommConfig* config,
                                              HcclComm* communicator) {
  if (!root || !config) {
    return refuse(HCCL_E_PTR, "HcclCommInitRootInfoConfig: rootInfo or config is null");
  }
  return create(__func__, party_of(*root, ranks, rank), config, communicator);
}

// Several roots spread the load of a rendezvous; here the first does it all.
EMU_API HcclResult HcclCommInitRootInfoScalable(uint32_t ranks, uint32_t roots,
                                                const HcclRootInfo* root, uint32_t rank, uint32_t,
                                                const HcclCommConfig* config,
                                                HcclComm* communicator) {
  if (!root || !roots) return refuse(HCCL_E_PTR, "HcclCommInitRootInfoScalable: no root info");
  return create(__func__, party_of(*root, ranks, rank), config, communicator);
}

// All ranks in one process, each with its device.
EMU_API HcclResult HcclCommInitAll(uint32_t ranks, int32_t* devices, HcclComm* comms) {
  if (!devices || !comms) return refuse(HCCL_E_PTR, "HcclCommInitAll: an argument is null");
  if (!ranks || ranks > kMaxRanks) {
    return refuse(HCCL_E_PARA, "HcclCommInitAll: " + std::to_string(ranks) + " ranks cannot be");
  }
  auto segment = Segment::create(ranks);
  if (!segment) {
    return refuse(HCCL_E_MEMORY, std::string("HcclCommInitAll: ") + std::strerror(errno));
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    int32_t physical = 0;
    if (aclrtGetLogicDevIdByUserDevId(devices[rank], &physical)) {
      return refuse(HCCL_E_PARA,
                    "HcclCommInitAll: there is no device " + std::to_string(devices[rank]));
    }
    for (uint32_t other = 0; other < rank; ++other) {
      if (segment->cell(other).device == physical) {
        return refuse(HCCL_E_PARA,
                      "HcclCommInitAll: two ranks use device " + std::to_string(devices[rank]));
      }
    }
    segment->cell(rank).process = getpid();
    segment->cell(rank).device = physical;
  }
  const std::string address = local_address();
  const std::string name = unique_name();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    comms[rank] = communicators().insert(std::make_shared<Communicator>(
        Communicator::Identity{name, rank, devices[rank], address, name, settings().exec_timeout},
        segment));
  }
  return HCCL_SUCCESS;
}

// A rank that is not in `rank_ids` calls it with null and gets no communicator.
EMU_API HcclResult HcclCreateSubCommConfig(HcclComm* comm, uint32_t ranks, uint32_t* rank_ids,
                                           uint64_t id, uint32_t rank, HcclCommConfig* config,
                                           HcclComm* communicator) {
  constexpr uint64_t kNoSubCommunicator = std::numeric_limits<uint32_t>::max();
  if (!comm || !communicator) {
    return refuse(HCCL_E_PTR, "HcclCreateSubCommConfig: comm or subComm is null");
  }
  auto parent = communicators().find(*comm);
  if (!parent) {
    return refuse(HCCL_E_PARA, "HcclCreateSubCommConfig: " + communicators().explain(*comm));
  }
  if (!rank_ids && id == kNoSubCommunicator) {
    *communicator = nullptr;
    return HCCL_SUCCESS;
  }
  if (!rank_ids) return refuse(HCCL_E_PTR, "HcclCreateSubCommConfig: rankIds is null");
  std::string members;
  for (uint32_t each = 0; each < ranks; ++each) {
    members += (each ? "," : "") + std::to_string(rank_ids[each]);
  }
  if (rank >= ranks || rank_ids[rank] != parent->rank()) {
    return refuse(HCCL_E_PARA, "HcclCreateSubCommConfig: " + parent->describe() +
                                   " is not number " + std::to_string(rank) + " of the ranks " +
                                   members);
  }
  const auto& of = parent->identity();
  // Members who name other ranks under the same id contradict each other by their number only; the
  // list is in the key so that they do not find each other at all.
  std::string key =
      of.key + "/" + std::to_string(id) + ":" + std::to_string(std::hash<std::string>{}(members));
  return create(__func__, {of.address, std::move(key), ranks, rank, 0}, config, communicator);
}

EMU_API HcclResult HcclCommDestroy(HcclComm handle) {
  auto communicator = communicators().erase(handle);
  if (!communicator) {
    return refuse(HCCL_E_PARA, "HcclCommDestroy: " + communicators().explain(handle));
  }
  communicator->leave();  // what is queued keeps the object, and fails
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetCommName(HcclComm handle, char* name) {
  auto communicator = communicators().find(handle);
  if (!communicator || !name) {
    return refuse(HCCL_E_PARA, "HcclGetCommName: " + (name ? communicators().explain(handle)
                                                           : std::string("commName is null")));
  }
  const std::string& text = communicator->identity().name;
  std::memcpy(name, text.c_str(), text.size() + 1);
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetRankSize(HcclComm handle, uint32_t* ranks) {
  auto communicator = communicators().find(handle);
  if (!communicator || !ranks) return refuse(HCCL_E_PARA, "HcclGetRankSize: a bad argument");
  *ranks = communicator->ranks();
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetRankId(HcclComm handle, uint32_t* rank) {
  auto communicator = communicators().find(handle);
  if (!communicator || !rank) return refuse(HCCL_E_PARA, "HcclGetRankId: a bad argument");
  *rank = communicator->rank();
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGetCommAsyncError(HcclComm handle, HcclResult* error) {
  auto communicator = communicators().find(handle);
  if (!communicator || !error) {
    return refuse(HCCL_E_PARA, "HcclGetCommAsyncError: a bad argument");
  }
  std::string why;
  *error = communicator->async_error(&why);
  if (*error != HCCL_SUCCESS) refuse(*error, why);  // for the caller to read the message
  return HCCL_SUCCESS;
}

EMU_API uint32_t HcclGetCommConfigCapability() { return HCCL_COMM_CONFIG_RESERVED; }

EMU_API HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }

EMU_API HcclResult HcclGetConfig(HcclConfig, HcclConfigValue* value) {
  if (!value) return HCCL_E_PTR;
  value->value = 1;  // deterministic, whatever is set
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclCommSuspend(HcclComm) {
  return refuse(HCCL_E_NOT_SUPPORT, "HcclCommSuspend is not emulated");
}

EMU_API HcclResult HcclCommResume(HcclComm) {
  return refuse(HCCL_E_NOT_SUPPORT,
                "HcclCommResume is not emulated: make a new communicator after a failure");
}
