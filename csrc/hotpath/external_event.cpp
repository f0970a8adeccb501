// SPDX-License-Identifier: Apache-2.0
#include "hotpath/external_event.h"

#include "hotpath/acl_call.h"

namespace hotpath {

ExternalEvent::ExternalEvent() {
  ACL_CALL(aclrtCreateEventExWithFlag(&event_, ACL_EVENT_EXTERNAL));
}

// The runtime may be gone at the end of a process: then the event is, too.
ExternalEvent::~ExternalEvent() { static_cast<void>(aclrtDestroyEvent(event_)); }

void ExternalEvent::wait(aclrtStream stream) const {
  ACL_CALL(aclrtStreamWaitEvent(stream, event_));
}

void ExternalEvent::reset(aclrtStream stream) const { ACL_CALL(aclrtResetEvent(event_, stream)); }

void ExternalEvent::record(aclrtStream stream) const { ACL_CALL(aclrtRecordEvent(event_, stream)); }

}  // namespace hotpath
