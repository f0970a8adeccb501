// SPDX-License-Identifier: Apache-2.0
#include "hccl/request.h"

#include "hccl/result.h"

namespace emu::hccl {

Request::Request(const char* api, HcclComm handle, aclrtStream stream)
    : api_(api), stream_(stream), communicator_(communicators().find(handle)) {
  if (!communicator_) refuse(HCCL_E_PARA, communicators().explain(handle));
  int device = device_of(stream);
  if (communicator_ && device != communicator_->identity().device) {
    refuse(HCCL_E_PARA, "the communicator is of device " +
                            std::to_string(communicator_->identity().device) +
                            ", the stream of device " + std::to_string(device));
  }
}

void Request::refuse(HcclResult result, const std::string& why) {
  if (result_ == HCCL_SUCCESS) result_ = hccl::refuse(result, std::string(api_) + ": " + why);
}

void Request::check_type(HcclDataType type) {
  if (!element_bytes(type)) {
    refuse(HCCL_E_PARA, "unknown data type " + std::to_string(static_cast<int>(type)));
  }
}

void Request::check_reduction(HcclDataType type, HcclReduceOp op) {
  check_type(type);
  if (op < HCCL_REDUCE_SUM || op > HCCL_REDUCE_MIN) {
    refuse(HCCL_E_PARA, "unknown reduction " + std::to_string(static_cast<int>(op)));
  }
  if (!is_reducible(type)) {
    refuse(HCCL_E_NOT_SUPPORT,
           std::string("HCCL does not reduce ") + name_of(type) + " on this chip: cast it first");
  }
}

void Request::check_rank(const char* argument, uint32_t rank) {
  if (communicator_ && rank >= communicator_->ranks()) {
    refuse(HCCL_E_PARA, std::string(argument) + " is " + std::to_string(rank) +
                            ", the communicator has " + std::to_string(communicator_->ranks()) +
                            " ranks");
  }
}

void Request::takes(size_t turn) {
  if (communicator_) turns_.push_back(communicator_->turn(turn));
}

void Request::reads(const void* address, uint64_t bytes) { access(address, bytes, false); }

void Request::writes(const void* address, uint64_t bytes) { access(address, bytes, true); }

void Request::access(const void* address, uint64_t bytes, bool is_write) {
  if (!bytes) return;
  if (!address) return refuse(HCCL_E_PTR, "a buffer is null");
  accesses_.push_back({address, bytes, is_write});
}

HcclResult Request::submit(Statement statement, std::function<void(Exchange&)> body,
                           std::vector<uint64_t> counts) {
  takes(Communicator::kCollectives);
  return submit(
      [statement, body = std::move(body), counts = std::move(counts)](Communicator& communicator) {
        Exchange exchange(communicator, statement, counts);
        body(exchange);
      });
}

HcclResult Request::submit(std::function<void(Communicator&)> body) {
  if (result_ != HCCL_SUCCESS) return result_;
  auto run = [communicator = communicator_, body = std::move(body)] { body(*communicator); };
  Task task{api_, TaskKind::kCollective, std::move(run), std::move(accesses_)};
  task.in_turn = std::move(turns_);
  return emu::submit(stream_, std::move(task)) ? HCCL_E_RUNTIME : HCCL_SUCCESS;
}

}  // namespace emu::hccl
