// SPDX-License-Identifier: Apache-2.0
#include "hccl/settings.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace emu::hccl {
namespace {

long read_seconds(const char* name, long fallback, long lowest, long highest) {
  const char* text = std::getenv(name);
  if (!text || !*text) return fallback;
  char* end = nullptr;
  errno = 0;
  long value = std::strtol(text, &end, 10);
  if (errno || *end || value < lowest || value > highest) {
    std::fprintf(stderr, "[ascend-emulator] %s='%s' is not valid: expected seconds, %ld to %ld\n",
                 name, text, lowest, highest);
    std::_Exit(2);
  }
  return value;
}

Settings read() {
  constexpr long kLongest = 2147483647;
  Settings read{};
  read.connect_timeout = std::chrono::seconds(read_seconds("HCCL_CONNECT_TIMEOUT", 120, 1, 7200));
  if (long seconds = read_seconds("HCCL_EXEC_TIMEOUT", 1836, 0, kLongest)) {
    read.exec_timeout = std::chrono::seconds(seconds);
  }
  return read;
}

}  // namespace

const Settings& settings() {
  static const Settings* instance = new Settings(read());
  return *instance;
}

}  // namespace emu::hccl
