// SPDX-License-Identifier: Apache-2.0
// How the ranks of a communicator find each other: each connects to a server under an abstract
// socket address and says who it is; when all have come, the server hands each the segment. Such
// an address has no file, and the server is a thread of the process that the address came from.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "hccl/hccl.h"
#include "hccl/segment.h"

namespace emu::hccl {

// Who wants to meet. Ranks meet those who say the same key at the same address.
struct Party {
  std::string address;
  std::string key;
  uint32_t ranks;
  uint32_t rank;
  int device;  // physical id
};

inline constexpr size_t kAddressBytes = 96;
inline constexpr size_t kKeyBytes = 400;

// The address of this process's server, which is started at the first call. Empty (errno set) if
// there can be none.
std::string local_address();

// The address that belongs to a text which all ranks know (a rank table): whoever comes first
// serves it.
std::string well_known_address(const std::string& text);
void serve_if_nobody_does(const std::string& address);

// Waits until all ranks are there. HCCL_E_TIMEOUT with the ranks that are missing, HCCL_E_PARA
// where ranks contradict each other, HCCL_E_REMOTE if the server's process is gone: `why` says it.
HcclResult meet(const Party& party, std::chrono::seconds timeout, std::shared_ptr<Segment>* segment,
                std::string* why);

}  // namespace emu::hccl
