// SPDX-License-Identifier: Apache-2.0
// What every operation of the ABI checks on the host before it becomes a task of a stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hccl/communicator.h"
#include "hccl/data_type.h"
#include "hccl/exchange.h"

namespace emu::hccl {

class Request {
 public:
  // `api` must have static lifetime.
  Request(const char* api, HcclComm handle, aclrtStream stream);

  // The first thing that was wrong; HCCL_SUCCESS if nothing was. The checks below do nothing after
  // it.
  HcclResult result() const { return result_; }
  explicit operator bool() const { return result_ == HCCL_SUCCESS; }
  void refuse(HcclResult result, const std::string& why);

  void check_type(HcclDataType type);
  void check_reduction(HcclDataType type, HcclReduceOp op);
  void check_rank(const char* argument, uint32_t rank);
  // The turn of the communicator that the task takes.
  void takes(size_t turn);
  // `argument` may be null where it stands for no bytes. Returns the task's access to it.
  void reads(const void* address, uint64_t bytes);
  void writes(const void* address, uint64_t bytes);

  Communicator& communicator() const { return *communicator_; }
  std::shared_ptr<Communicator> shared_communicator() const { return communicator_; }

  // Queues the collective. `body` runs on the stream's worker.
  HcclResult submit(Statement statement, std::function<void(Exchange&)> body,
                    std::vector<uint64_t> counts = {});
  // Queues anything.
  HcclResult submit(std::function<void(Communicator&)> body);

 private:
  void access(const void* address, uint64_t bytes, bool is_write);

  const char* const api_;
  const aclrtStream stream_;
  std::shared_ptr<Communicator> communicator_;
  std::vector<ByteRange> accesses_;
  std::vector<const void*> turns_;
  HcclResult result_ = HCCL_SUCCESS;
};

// For a body: the buffer where it can be touched.
inline char* data(const void* address) { return static_cast<char*>(host_alias(address)); }

}  // namespace emu::hccl
