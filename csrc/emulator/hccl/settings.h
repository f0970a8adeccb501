// SPDX-License-Identifier: Apache-2.0
// HCCL's own environment variables, read once. No behaviour here.
#pragma once

#include <chrono>
#include <optional>

namespace emu::hccl {

struct Settings {
  // HCCL_CONNECT_TIMEOUT: how long ranks wait for each other when a communicator is made. Default
  // 120 s. CANN takes 120 to 7200; a test wants less, so that 1 is the least here.
  std::chrono::seconds connect_timeout;
  // HCCL_EXEC_TIMEOUT: how long a rank waits for others in an operation. Default 1836 s; nothing
  // (0) is for ever.
  std::optional<std::chrono::seconds> exec_timeout;
};

// A value that cannot be understood ends the process with a message.
const Settings& settings();

}  // namespace emu::hccl
