// SPDX-License-Identifier: Apache-2.0
// Point-to-point operations of the HCCL ABI, and groups: what is sent and received between
// HcclGroupStart and HcclGroupEnd on one thread is one task for each communicator and stream.
#include <algorithm>

#include "hccl/request.h"
#include "hccl/result.h"
#include "hccl/transfer.h"

namespace emu::hccl {
namespace {

// A message as it was asked for: `buffer` is the application's address.
struct Asked {
  HcclComm comm;
  aclrtStream stream;
  Message message;
};

struct OpenGroup {
  int depth = 0;
  std::vector<Asked> asked;
};

thread_local OpenGroup open_group;

HcclResult submit(const char* api, Operation operation, HcclComm comm, aclrtStream stream,
                  std::vector<Message> messages) {
  Request request(api, comm, stream);
  for (const Message& message : messages) {
    request.check_type(message.type);
    request.check_rank(message.is_send ? "destRank" : "srcRank", message.peer);
    const uint64_t bytes = message.count * element_bytes(message.type);
    request.takes(message.is_send ? Communicator::sends_to(message.peer)
                                  : Communicator::receives_from(message.peer));
    if (message.is_send) {
      request.reads(message.buffer, bytes);
    } else {
      request.writes(message.buffer, bytes);
    }
  }
  return request.submit([operation, messages = std::move(messages)](Communicator& communicator) {
    std::vector<Message> reachable = messages;
    for (Message& message : reachable) message.buffer = data(message.buffer);
    transfer(communicator, operation, std::move(reachable));
  });
}

HcclResult ask(const char* api, Operation operation, HcclComm comm, aclrtStream stream,
               const Message& message) {
  if (!open_group.depth) return submit(api, operation, comm, stream, {message});
  open_group.asked.push_back({comm, stream, message});
  return HCCL_SUCCESS;
}

}  // namespace
}  // namespace emu::hccl

using namespace emu::hccl;

EMU_API HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t peer,
                            HcclComm comm, aclrtStream stream) {
  return ask(__func__, Operation::kSend, comm, stream,
             {true, static_cast<char*>(buffer), count, type, peer});
}

EMU_API HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t peer,
                            HcclComm comm, aclrtStream stream) {
  return ask(__func__, Operation::kReceive, comm, stream,
             {false, static_cast<char*>(buffer), count, type, peer});
}

EMU_API HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm,
                                     aclrtStream stream) {
  if (!items) return refuse(HCCL_E_PTR, "HcclBatchSendRecv: sendRecvInfo is null");
  std::vector<Message> messages;
  for (const HcclSendRecvItem* item = items; item != items + count; ++item) {
    if (item->sendRecvType != HCCL_SEND && item->sendRecvType != HCCL_RECV) {
      return refuse(HCCL_E_PARA, "HcclBatchSendRecv: an item neither sends nor receives");
    }
    messages.push_back({item->sendRecvType == HCCL_SEND, static_cast<char*>(item->buf), item->count,
                        item->dataType, item->remoteRank});
  }
  return submit(__func__, Operation::kBatchSendReceive, comm, stream, std::move(messages));
}

EMU_API HcclResult HcclGroupStart() {
  ++open_group.depth;
  return HCCL_SUCCESS;
}

EMU_API HcclResult HcclGroupEnd() {
  if (!open_group.depth) return refuse(HCCL_E_PARA, "HcclGroupEnd without HcclGroupStart");
  if (--open_group.depth) return HCCL_SUCCESS;
  std::vector<Asked> asked = std::move(open_group.asked);
  open_group.asked.clear();
  while (!asked.empty()) {
    const Asked first = asked.front();
    std::vector<Message> messages;
    std::erase_if(asked, [&](const Asked& each) {
      if (each.comm != first.comm || each.stream != first.stream) return false;
      messages.push_back(each.message);
      return true;
    });
    HcclResult result = submit("HcclGroupEnd", Operation::kBatchSendReceive, first.comm,
                               first.stream, std::move(messages));
    if (result != HCCL_SUCCESS) return result;
  }
  return HCCL_SUCCESS;
}
