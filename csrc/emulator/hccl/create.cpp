// SPDX-License-Identifier: Apache-2.0
#include "hccl/create.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>

#include "hccl/result.h"
#include "hccl/settings.h"

namespace emu::hccl {
namespace {

// Whether the caller's structure is long enough to have `field`, by the size that it begins with.
bool has_field(const HcclCommConfig& config, size_t end_of_field) {
  size_t size = 0;
  std::memcpy(&size, config.reserved, sizeof size);
  return size >= end_of_field;
}

std::string name_in(const HcclCommConfig* config) {
  if (!config || !has_field(*config, offsetof(HcclCommConfig, hcclUdi))) return "";
  return {config->hcclCommName, strnlen(config->hcclCommName, COMM_NAME_MAX_LENGTH - 1)};
}

std::optional<std::chrono::seconds> exec_timeout_in(const HcclCommConfig* config) {
  if (!config || !has_field(*config, offsetof(HcclCommConfig, hcclAlgo)) ||
      config->hcclExecTimeOut == HCCL_COMM_EXECTIMEOUT_CONFIG_NOT_SET) {
    return settings().exec_timeout;
  }
  if (!config->hcclExecTimeOut) return std::nullopt;
  return std::chrono::seconds(config->hcclExecTimeOut);
}

// The calling thread's device, in this process and on the machine.
HcclResult current_device(const char* api, int* index, int* physical) {
  int32_t here = 0;
  int32_t there = 0;
  if (aclrtGetDevice(&here) || aclrtGetLogicDevIdByUserDevId(here, &there)) {
    return refuse(HCCL_E_RUNTIME, std::string(api) +
                                      ": this thread has no device, call "
                                      "aclrtSetDevice first");
  }
  *index = here;
  *physical = there;
  return HCCL_SUCCESS;
}

// torch_npu 2.13 keeps what it has to destroy at exit in a container without a lock
// (NpuSysCtrl::RegisterReleaseFn), right after it has got a communicator: ranks that are threads of
// one process would corrupt it. They get theirs one after the other.
void let_the_caller_return_alone(Segment& segment, uint32_t rank) {
  constexpr auto kHeadStart = std::chrono::milliseconds(2);
  static std::mutex one_at_a_time;
  for (uint32_t other = 0; other < segment.ranks(); ++other) {
    if (other == rank || segment.cell(other).process != getpid()) continue;
    std::lock_guard lock(one_at_a_time);
    std::this_thread::sleep_for(kHeadStart);
    return;
  }
}

}  // namespace

HcclResult create(const char* api, Party party, const HcclCommConfig* config,
                  HcclComm* communicator) {
  if (!communicator) return refuse(HCCL_E_PTR, std::string(api) + ": comm is null");
  *communicator = nullptr;
  if (!party.ranks || party.ranks > kMaxRanks || party.rank >= party.ranks) {
    return refuse(HCCL_E_PARA, std::string(api) + ": rank " + std::to_string(party.rank) + " of " +
                                   std::to_string(party.ranks) + " ranks cannot be (at most " +
                                   std::to_string(kMaxRanks) + ")");
  }
  int device = 0;
  if (HcclResult result = current_device(api, &device, &party.device)) return result;
  std::string name = name_in(config);
  if (name.empty()) name = party.key.substr(0, COMM_NAME_MAX_LENGTH - 1);
  std::shared_ptr<Segment> segment;
  std::string why;
  if (HcclResult result = meet(party, settings().connect_timeout, &segment, &why)) {
    return refuse(result, std::string(api) + ", rank " + std::to_string(party.rank) + " of " +
                              std::to_string(party.ranks) + " of communicator '" + name +
                              "': " + why);
  }
  let_the_caller_return_alone(*segment, party.rank);
  *communicator = communicators().insert(std::make_shared<Communicator>(
      Communicator::Identity{std::move(name), party.rank, device, party.address, party.key,
                             exec_timeout_in(config)},
      std::move(segment)));
  return HCCL_SUCCESS;
}

}  // namespace emu::hccl
