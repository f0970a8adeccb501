// SPDX-License-Identifier: Apache-2.0
// A weak definition for each operator that torch_npu may look up. The operators of the other files
// are strong and take its place; what is left fails in phase 1, at the call, with its name. Never
// give a name here that torch_npu treats as optional (see OPTIONAL in generate_names.py).
#include "ops/operator.h"

#define OPERATOR_NAME(name)                                                              \
  EMU_API __attribute__((weak)) int name##GetWorkspaceSize() {                           \
    return emu::ops::refuse_unimplemented(#name,                                         \
                                          "ops/operator.h, and ops/elementwise.cpp "     \
                                          "for examples");                               \
  }                                                                                      \
  EMU_API __attribute__((weak)) int name(void*, uint64_t, aclOpExecutor*, aclrtStream) { \
    return emu::ops::refuse_unimplemented(#name,                                         \
                                          "ops/operator.h, and ops/elementwise.cpp "     \
                                          "for examples");                               \
  }
#include "ops/operator_names.inc"
