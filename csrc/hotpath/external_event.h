// SPDX-License-Identifier: Apache-2.0
// An event that a captured graph waits for and that the host's updates record from outside of it.
// torch_npu's own class of this name does not give its handle away, which an update without Python
// needs. Streams are the runtime's handles; torch_npu's queue must have been emptied into them.
#pragma once

#include <acl/acl_rt.h>

namespace hotpath {

class ExternalEvent {
 public:
  // Throws c10::Error where the runtime has no event left.
  ExternalEvent();
  ~ExternalEvent();
  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;

  void wait(aclrtStream stream) const;
  void reset(aclrtStream stream) const;
  void record(aclrtStream stream) const;

 private:
  aclrtEvent event_ = nullptr;
};

}  // namespace hotpath
