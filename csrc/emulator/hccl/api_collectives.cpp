// SPDX-License-Identifier: Apache-2.0
// The collectives of the HCCL ABI: arguments in, a task out.
#include <numeric>

#include "hccl/collectives.h"
#include "hccl/request.h"

namespace emu::hccl {
namespace {

Counts equal(uint32_t ranks, uint64_t count) { return Counts(ranks, count); }

// Where each rank's part begins if they lie side by side.
Counts side_by_side(const Counts& counts) {
  Counts offsets(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, offsets.begin() + 1);
  return offsets;
}

// An array argument of the ABI, one entry for each rank.
Counts array(Request& request, const void* values) {
  if (!values) {
    request.refuse(HCCL_E_PTR, "an array of counts or displacements is null");
    return equal(request ? request.communicator().ranks() : 1, 0);
  }
  const auto* first = static_cast<const uint64_t*>(values);
  return Counts(first, first + request.communicator().ranks());
}

// Each rank's part of a buffer.
void touch(Request& request, const void* buffer, const Counts& counts, const Counts& offsets,
           size_t unit, bool is_write) {
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const char* part = buffer ? static_cast<const char*>(buffer) + offsets[rank] * unit : nullptr;
    if (is_write) {
      request.writes(part, counts[rank] * unit);
    } else {
      request.reads(part, counts[rank] * unit);
    }
  }
}

Statement say(Operation operation, HcclDataType type, uint64_t count) {
  return {operation, static_cast<uint32_t>(type), 0, 0, count};
}

Statement say(Operation operation, HcclDataType type, HcclReduceOp op, uint64_t count,
              uint32_t root = 0) {
  return {operation, static_cast<uint32_t>(type), static_cast<uint32_t>(op), root, count};
}

HcclResult all_gather(Request& request, Operation operation, const void* send, void* receive,
                      const Counts& counts, const Counts& offsets, uint64_t count,
                      HcclDataType type) {
  const size_t unit = element_bytes(type);
  request.reads(send, counts[request.communicator().rank()] * unit);
  touch(request, receive, counts, offsets, unit, true);
  return request.submit(
      say(operation, type, count),
      [send, receive, counts, offsets, unit](Exchange& exchange) {
        hccl::all_gather(exchange, data(send), data(receive), counts, offsets, unit);
      },
      counts);
}

HcclResult reduce_scatter(Request& request, Operation operation, const void* send, void* receive,
                          const Counts& counts, const Counts& offsets, uint64_t count,
                          HcclDataType type, HcclReduceOp op) {
  const size_t unit = element_bytes(type);
  touch(request, send, counts, offsets, unit, false);
  request.writes(receive, counts[request.communicator().rank()] * unit);
  return request.submit(
      say(operation, type, op, count),
      [send, receive, counts, offsets, type, op](Exchange& exchange) {
        hccl::reduce_scatter(exchange, data(send), data(receive), counts, offsets, type, op);
      },
      counts);
}

HcclResult all_to_all(Request& request, Operation operation, const void* send, const void* receive,
                      AllToAll layout, uint64_t count, HcclDataType type) {
  layout.unit = element_bytes(type);
  touch(request, send, layout.send_counts, layout.send_offsets, layout.unit, false);
  touch(request, receive, layout.receive_counts, layout.receive_offsets, layout.unit, true);
  Counts counts = layout.send_counts;
  return request.submit(
      say(operation, type, count),
      [send, receive, layout = std::move(layout)](Exchange& exchange) {
        hccl::all_to_all(exchange, data(send), data(receive), layout);
      },
      std::move(counts));
}

void check_same_type(Request& request, HcclDataType send, HcclDataType receive) {
  request.check_type(send);
  if (send != receive) {
    request.refuse(HCCL_E_PARA, std::string("sendType is ") + name_of(send) + ", recvType " +
                                    name_of(receive) + ": they must be the same");
  }
}

}  // namespace
}  // namespace emu::hccl

using namespace emu::hccl;

EMU_API HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  return request.submit(Statement{Operation::kBarrier},
                        [](Exchange& exchange) { barrier(exchange); });
}

EMU_API HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, HcclDataType type,
                                 HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_reduction(type, op);
  request.reads(send, count * element_bytes(type));
  request.writes(receive, count * element_bytes(type));
  return request.submit(say(Operation::kAllReduce, type, op, count), [=](Exchange& exchange) {
    all_reduce(exchange, data(send), data(receive), count, type, op);
  });
}

EMU_API HcclResult HcclReduce(void* send, void* receive, uint64_t count, HcclDataType type,
                              HcclReduceOp op, uint32_t root, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_reduction(type, op);
  request.check_rank("root", root);
  request.reads(send, count * element_bytes(type));
  if (request && request.communicator().rank() == root) {
    request.writes(receive, count * element_bytes(type));
  }
  return request.submit(say(Operation::kReduce, type, op, count, root), [=](Exchange& exchange) {
    reduce(exchange, data(send), data(receive), count, type, op, root);
  });
}

EMU_API HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root,
                                 HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_type(type);
  request.check_rank("root", root);
  const uint64_t bytes = count * element_bytes(type);
  if (request && request.communicator().rank() == root) {
    request.reads(buffer, bytes);
  } else {
    request.writes(buffer, bytes);
  }
  Statement statement = say(Operation::kBroadcast, type, count);
  statement.root = root;
  return request.submit(
      statement, [=](Exchange& exchange) { broadcast(exchange, data(buffer), bytes, root); });
}

EMU_API HcclResult HcclScatter(void* send, void* receive, uint64_t count, HcclDataType type,
                               uint32_t root, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_type(type);
  request.check_rank("root", root);
  const uint64_t bytes = count * element_bytes(type);
  if (request && request.communicator().rank() == root) {
    request.reads(send, bytes * request.communicator().ranks());
  }
  request.writes(receive, bytes);
  Statement statement = say(Operation::kScatter, type, count);
  statement.root = root;
  return request.submit(statement, [=](Exchange& exchange) {
    scatter(exchange, data(send), data(receive), bytes, root);
  });
}

EMU_API HcclResult HcclAllGather(void* send, void* receive, uint64_t count, HcclDataType type,
                                 HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_type(type);
  if (!request) return request.result();
  Counts counts = equal(request.communicator().ranks(), count);
  return all_gather(request, Operation::kAllGather, send, receive, counts, side_by_side(counts),
                    count, type);
}

EMU_API HcclResult HcclAllGatherV(void* send, uint64_t count, void* receive, const void* counts,
                                  const void* displacements, HcclDataType type, HcclComm comm,
                                  aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_type(type);
  if (!request) return request.result();
  Counts each = array(request, counts);
  Counts offsets = array(request, displacements);
  if (request && each[request.communicator().rank()] != count) {
    request.refuse(HCCL_E_PARA, "sendCount is " + std::to_string(count) +
                                    ", recvCounts has another for this rank");
  }
  if (!request) return request.result();
  return all_gather(request, Operation::kAllGatherV, send, receive, each, offsets, 0, type);
}

EMU_API HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, HcclDataType type,
                                     HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_reduction(type, op);
  if (!request) return request.result();
  Counts counts = equal(request.communicator().ranks(), count);
  return reduce_scatter(request, Operation::kReduceScatter, send, receive, counts,
                        side_by_side(counts), count, type, op);
}

EMU_API HcclResult HcclReduceScatterV(void* send, const void* counts, const void* displacements,
                                      void* receive, uint64_t count, HcclDataType type,
                                      HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  request.check_reduction(type, op);
  if (!request) return request.result();
  Counts each = array(request, counts);
  Counts offsets = array(request, displacements);
  if (request && each[request.communicator().rank()] != count) {
    request.refuse(HCCL_E_PARA, "recvCount is " + std::to_string(count) +
                                    ", sendCounts has another for this rank");
  }
  if (!request) return request.result();
  return reduce_scatter(request, Operation::kReduceScatterV, send, receive, each, offsets, 0, type,
                        op);
}

EMU_API HcclResult HcclAlltoAll(const void* send, uint64_t send_count, HcclDataType send_type,
                                const void* receive, uint64_t receive_count,
                                HcclDataType receive_type, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  check_same_type(request, send_type, receive_type);
  if (send_count != receive_count) {
    request.refuse(HCCL_E_PARA, "sendCount is " + std::to_string(send_count) + ", recvCount " +
                                    std::to_string(receive_count) + ": they must be the same");
  }
  if (!request) return request.result();
  Counts counts = equal(request.communicator().ranks(), send_count);
  Counts offsets = side_by_side(counts);
  return all_to_all(request, Operation::kAllToAll, send, receive,
                    {counts, offsets, counts, offsets, 0}, send_count, send_type);
}

EMU_API HcclResult HcclAlltoAllV(const void* send, const void* send_counts,
                                 const void* send_displacements, HcclDataType send_type,
                                 const void* receive, const void* receive_counts,
                                 const void* receive_displacements, HcclDataType receive_type,
                                 HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  check_same_type(request, send_type, receive_type);
  if (!request) return request.result();
  AllToAll layout{array(request, send_counts), array(request, send_displacements),
                  array(request, receive_counts), array(request, receive_displacements), 0};
  if (!request) return request.result();
  return all_to_all(request, Operation::kAllToAllV, send, receive, std::move(layout), 0, send_type);
}

EMU_API HcclResult HcclAlltoAllVC(const void* send, const void* count_matrix,
                                  HcclDataType send_type, const void* receive,
                                  HcclDataType receive_type, HcclComm comm, aclrtStream stream) {
  Request request(__func__, comm, stream);
  check_same_type(request, send_type, receive_type);
  if (request && !count_matrix) request.refuse(HCCL_E_PTR, "sendCountMatrix is null");
  if (!request) return request.result();
  const uint32_t ranks = request.communicator().ranks();
  const uint32_t rank = request.communicator().rank();
  const auto* matrix = static_cast<const uint64_t*>(count_matrix);  // [sender][receiver]
  AllToAll layout{};
  for (uint32_t other = 0; other < ranks; ++other) {
    layout.send_counts.push_back(matrix[rank * ranks + other]);
    layout.receive_counts.push_back(matrix[other * ranks + rank]);
  }
  layout.send_offsets = side_by_side(layout.send_counts);
  layout.receive_offsets = side_by_side(layout.receive_counts);
  return all_to_all(request, Operation::kAllToAllVC, send, receive, std::move(layout), 0,
                    send_type);
}
