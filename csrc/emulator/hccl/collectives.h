// SPDX-License-Identifier: Apache-2.0
// The collectives, on memory that can be touched. What is passed where, and in which order it is
// added up; not who waits for whom, which is exchange.h's.
#pragma once

#include <cstdint>
#include <vector>

#include "hccl/exchange.h"

namespace emu::hccl {

using Counts = std::vector<uint64_t>;  // elements or offsets in elements, by rank

// `bytes` are those of one rank's part. The ranks of a reduction are added up from 0 on.
void barrier(Exchange& exchange);
void all_reduce(Exchange& exchange, const char* send, char* receive, uint64_t count,
                HcclDataType type, HcclReduceOp op);
void reduce(Exchange& exchange, const char* send, char* receive, uint64_t count, HcclDataType type,
            HcclReduceOp op, uint32_t root);
void broadcast(Exchange& exchange, char* buffer, uint64_t bytes, uint32_t root);
void scatter(Exchange& exchange, const char* send, char* receive, uint64_t bytes, uint32_t root);

// Ranks have `counts` elements each, of `unit` bytes, at their `offsets` in the whole.
void all_gather(Exchange& exchange, const char* send, char* receive, const Counts& counts,
                const Counts& offsets, size_t unit);
void reduce_scatter(Exchange& exchange, const char* send, char* receive, const Counts& counts,
                    const Counts& offsets, HcclDataType type, HcclReduceOp op);

// This rank's layout of both buffers. The exchange has its send counts.
struct AllToAll {
  Counts send_counts, send_offsets, receive_counts, receive_offsets;
  size_t unit;
};
void all_to_all(Exchange& exchange, const char* send, char* receive, const AllToAll& layout);

}  // namespace emu::hccl
