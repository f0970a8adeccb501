// SPDX-License-Identifier: Apache-2.0
#include "hccl/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/api.h"

namespace emu::hccl {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

const char* name_of(Operation operation) {
  static constexpr const char* kNames[] = {
      "no operation",      "HcclAllGather",      "HcclAllGatherV", "HcclAllReduce",
      "HcclAlltoAll",      "HcclAlltoAllV",      "HcclAlltoAllVC", "HcclBarrier",
      "HcclBatchSendRecv", "HcclBroadcast",      "HcclRecv",       "HcclReduce",
      "HcclReduceScatter", "HcclReduceScatterV", "HcclScatter",    "HcclSend"};
  auto index = static_cast<size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "an unknown operation";
}

void Order::write() {
  std::vector<uint32_t> order = order_to_send();
  if (order.size() > std::size(words)) order.clear();
  count = static_cast<uint32_t>(order.size());
  std::copy(order.begin(), order.end(), words);
}

void Order::read() const {
  if (count) order_received(words, count);
}

Segment::Segment(FileDescriptor file, uint32_t ranks) : file_(std::move(file)), ranks_(ranks) {
  const size_t pairs = size_t{ranks} * ranks;
  size_t end = round_up(ranks * sizeof(RankCell));
  auto take = [&](size_t bytes) {
    size_t begin = end;
    end = round_up(end + bytes);
    return begin;
  };
  channels_ = take(pairs * sizeof(Channel));
  slots_ = take(ranks * kSlots * kSlotBytes);
  pieces_ = take(pairs * kSlots * kPieceBytes);
  orders_ = take(ranks * kSlots * sizeof(Order));
  piece_orders_ = take(pairs * kSlots * sizeof(Order));
  bytes_ = end;
}

std::shared_ptr<Segment> Segment::create(uint32_t ranks) {
  FileDescriptor file(memfd_create("emulated_hccl", MFD_CLOEXEC));
  if (!file) return nullptr;
  // Pages cost memory when they are written first, and most never are.
  auto segment = std::shared_ptr<Segment>(new Segment(std::move(file), ranks));
  if (ftruncate(segment->file(), static_cast<off_t>(segment->bytes_))) return nullptr;
  return open(std::move(segment->file_), ranks);
}

std::shared_ptr<Segment> Segment::open(FileDescriptor file, uint32_t ranks) {
  auto segment = std::shared_ptr<Segment>(new Segment(std::move(file), ranks));
  void* base = mmap(nullptr, segment->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    segment->file(), 0);
  if (base == MAP_FAILED) return nullptr;
  segment->base_ = static_cast<char*>(base);
  return segment;
}

Segment::~Segment() {
  if (base_) munmap(base_, bytes_);
}

}  // namespace emu::hccl
