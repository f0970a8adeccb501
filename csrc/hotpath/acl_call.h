// SPDX-License-Identifier: Apache-2.0
// Turns an error code of the runtime into a c10::Error that has the runtime's own message.
#pragma once

#include <acl/acl_base.h>
#include <acl/acl_rt.h>
#include <c10/util/Exception.h>

#define ACL_CALL(call)                                                                   \
  do {                                                                                   \
    const aclError acl_call_error = (call);                                              \
    if (acl_call_error != ACL_SUCCESS) {                                                 \
      const char* acl_call_message = aclGetRecentErrMsg();                               \
      TORCH_CHECK(false, #call, " failed with ", acl_call_error, ": ",                   \
                  acl_call_message ? acl_call_message : "the runtime gives no message"); \
    }                                                                                    \
  } while (false)
