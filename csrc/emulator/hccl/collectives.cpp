// SPDX-License-Identifier: Apache-2.0
#include "hccl/collectives.h"

#include <algorithm>
#include <cstring>

#include "hccl/data_type.h"
#include "hccl/reduction.h"

namespace emu::hccl {
namespace {

// A slot shared out to all ranks, each part whole elements of any type.
size_t part_bytes(const Exchange& exchange) {
  constexpr size_t kAlignment = 64;
  return kSlotBytes / exchange.ranks() / kAlignment * kAlignment;
}

// Calls `round(begin, bytes)` for each part of `bytes`, at least once: ranks meet for nothing too.
template <typename Round>
void in_parts(uint64_t bytes, size_t part, Round round) {
  uint64_t begin = 0;
  do {
    round(begin, std::min<uint64_t>(part, bytes - begin));
    begin += part;
  } while (begin < bytes);
}

// What is left of `bytes` from `begin` on, at most `part`.
uint64_t left(uint64_t bytes, uint64_t begin, uint64_t part) {
  return begin < bytes ? std::min(part, bytes - begin) : 0;
}

void copy(char* to, const char* from, uint64_t bytes) {
  if (bytes) std::memcpy(to, from, bytes);
}

// `result` = the sum of what the ranks have at `offset` of their slots.
void add_up(Exchange& exchange, char* result, uint64_t offset, uint64_t bytes, HcclDataType type,
            HcclReduceOp op) {
  copy(result, exchange.of(0) + offset, bytes);
  for (uint32_t rank = 1; rank < exchange.ranks(); ++rank) {
    reduce_into(result, exchange.of(rank) + offset, bytes / element_bytes(type), type, op);
  }
}

}  // namespace

void barrier(Exchange& exchange) {
  exchange.begin_round();
  exchange.meet();
}

void all_reduce(Exchange& exchange, const char* send, char* receive, uint64_t count,
                HcclDataType type, HcclReduceOp op) {
  in_parts(count * element_bytes(type), kSlotBytes, [&](uint64_t begin, uint64_t bytes) {
    exchange.begin_round();
    copy(exchange.mine(), send + begin, bytes);
    exchange.meet();
    add_up(exchange, receive + begin, 0, bytes, type, op);
  });
}

void reduce(Exchange& exchange, const char* send, char* receive, uint64_t count, HcclDataType type,
            HcclReduceOp op, uint32_t root) {
  in_parts(count * element_bytes(type), kSlotBytes, [&](uint64_t begin, uint64_t bytes) {
    exchange.begin_round();
    copy(exchange.mine(), send + begin, bytes);
    exchange.meet();
    if (exchange.rank() == root) add_up(exchange, receive + begin, 0, bytes, type, op);
  });
}

void broadcast(Exchange& exchange, char* buffer, uint64_t bytes, uint32_t root) {
  in_parts(bytes, kSlotBytes, [&](uint64_t begin, uint64_t part) {
    exchange.begin_round();
    if (exchange.rank() == root) copy(exchange.mine(), buffer + begin, part);
    exchange.meet();
    if (exchange.rank() != root) copy(buffer + begin, exchange.of(root), part);
  });
}

void scatter(Exchange& exchange, const char* send, char* receive, uint64_t bytes, uint32_t root) {
  const size_t stride = part_bytes(exchange);
  in_parts(bytes, stride, [&](uint64_t begin, uint64_t part) {
    exchange.begin_round();
    if (exchange.rank() == root) {
      for (uint32_t rank = 0; rank < exchange.ranks(); ++rank) {
        copy(exchange.mine() + rank * stride, send + rank * bytes + begin, part);
      }
    }
    exchange.meet();
    copy(receive + begin, exchange.of(root) + exchange.rank() * stride, part);
  });
}

void all_gather(Exchange& exchange, const char* send, char* receive, const Counts& counts,
                const Counts& offsets, size_t unit) {
  const uint64_t longest = *std::max_element(counts.begin(), counts.end()) * unit;
  in_parts(longest, kSlotBytes, [&](uint64_t begin, uint64_t) {
    exchange.begin_round();
    copy(exchange.mine(), send + begin, left(counts[exchange.rank()] * unit, begin, kSlotBytes));
    exchange.meet();
    for (uint32_t rank = 0; rank < exchange.ranks(); ++rank) {
      copy(receive + offsets[rank] * unit + begin, exchange.of(rank),
           left(counts[rank] * unit, begin, kSlotBytes));
    }
  });
}

void reduce_scatter(Exchange& exchange, const char* send, char* receive, const Counts& counts,
                    const Counts& offsets, HcclDataType type, HcclReduceOp op) {
  const size_t unit = element_bytes(type);
  const size_t stride = part_bytes(exchange);
  const uint64_t longest = *std::max_element(counts.begin(), counts.end()) * unit;
  in_parts(longest, stride, [&](uint64_t begin, uint64_t) {
    exchange.begin_round();
    for (uint32_t rank = 0; rank < exchange.ranks(); ++rank) {
      copy(exchange.mine() + rank * stride, send + offsets[rank] * unit + begin,
           left(counts[rank] * unit, begin, stride));
    }
    exchange.meet();
    add_up(exchange, receive + begin, exchange.rank() * stride,
           left(counts[exchange.rank()] * unit, begin, stride), type, op);
  });
}

void all_to_all(Exchange& exchange, const char* send, char* receive, const AllToAll& layout) {
  const size_t stride = part_bytes(exchange);
  uint64_t longest = 0;
  uint64_t begin = 0;
  do {
    exchange.begin_round();
    for (uint32_t to = 0; to < exchange.ranks(); ++to) {
      copy(exchange.mine() + to * stride, send + layout.send_offsets[to] * layout.unit + begin,
           left(layout.send_counts[to] * layout.unit, begin, stride));
    }
    exchange.meet();
    for (uint32_t from = 0; from < exchange.ranks() && !begin; ++from) {
      for (uint32_t to = 0; to < exchange.ranks(); ++to) {
        longest = std::max(longest, exchange.count_of(from, to) * layout.unit);
      }
      uint64_t sent = exchange.count_of(from, exchange.rank());
      if (sent != layout.receive_counts[from]) {
        exchange.refuse("the count from rank " + std::to_string(from) + " to rank " +
                            std::to_string(exchange.rank()),
                        std::to_string(layout.receive_counts[from]), std::to_string(sent), from);
      }
    }
    for (uint32_t from = 0; from < exchange.ranks(); ++from) {
      copy(receive + layout.receive_offsets[from] * layout.unit + begin,
           exchange.of(from) + exchange.rank() * stride,
           left(layout.receive_counts[from] * layout.unit, begin, stride));
    }
    begin += stride;
  } while (begin < longest);
}

}  // namespace emu::hccl
