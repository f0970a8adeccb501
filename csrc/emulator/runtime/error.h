// SPDX-License-Identifier: Apache-2.0
// Error reporting shared by every API: the calling thread's recent message, the process-wide
// "poisoned" state, and the checks that each API makes before it does anything.
#pragma once

#include <string>

#include "runtime/api.h"

namespace emu {

// The message if poison() was called, else null. Never changes back.
const std::string* poisoned();

// For an argument that must not be null.
aclError fail_null(const char* api, const char* argument);

// For a function of the ABI that is present so that it can be named when it is reached.
aclError fail_unsupported(const char* api, const char* why);

}  // namespace emu

#define EMU_REQUIRE_NOT_NULL(pointer)                                      \
  do {                                                                     \
    if ((pointer) == nullptr) return ::emu::fail_null(__func__, #pointer); \
  } while (0)
