// SPDX-License-Identifier: Apache-2.0
#include "runtime/delay.h"

namespace emu {
namespace {

// splitmix64's finaliser: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

uint32_t delay_us(uint64_t seed, int device, uint64_t stream, uint64_t task) {
  uint64_t r = mix(mix(mix(mix(seed) ^ static_cast<uint64_t>(device)) ^ stream) ^ task);
  // The low bits choose the class, the high bits the length.
  if (r % 16 != 0) return 0;
  bool is_long = (r / 16) % 16 == 0;
  uint32_t span_us = is_long ? 4000 : 1000;
  return 50 + static_cast<uint32_t>((r >> 32) % (span_us - 50));
}

uint32_t event_delay_us(uint64_t seed, uint64_t stream, uint64_t task) {
  uint64_t r = mix(mix(mix(seed) ^ stream) ^ ~task);
  return r % 2 ? 50 + static_cast<uint32_t>((r >> 32) % 950) : 0;
}

}  // namespace emu
