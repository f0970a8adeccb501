// SPDX-License-Identifier: Apache-2.0
#include "checker/clock.h"

namespace emu::check {
namespace {

void append(std::vector<uint32_t>& packed, uint64_t process, const std::vector<uint32_t>& counts) {
  packed.push_back(static_cast<uint32_t>(process));
  packed.push_back(static_cast<uint32_t>(process >> 32));
  packed.push_back(static_cast<uint32_t>(counts.size()));
  packed.insert(packed.end(), counts.begin(), counts.end());
}

}  // namespace

std::vector<uint32_t> Clock::pack(uint64_t own) const {
  std::vector<uint32_t> packed;
  append(packed, own, counts_);
  for (const auto& [process, counts] : elsewhere_) append(packed, process, counts);
  return packed;
}

void Clock::join_packed(const uint32_t* packed, size_t words, uint64_t own) {
  constexpr size_t kHead = 3;
  const uint32_t* const end = packed + words;
  while (static_cast<size_t>(end - packed) >= kHead) {
    const uint64_t process = packed[0] | uint64_t{packed[1]} << 32;
    const uint32_t* const counts = packed + kHead;
    packed = counts + std::min<size_t>(counts[-1], static_cast<size_t>(end - counts));
    join(process == own ? counts_ : elsewhere_[process], Counts(counts, packed));
  }
}

}  // namespace emu::check
