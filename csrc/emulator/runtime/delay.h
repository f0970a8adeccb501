// SPDX-License-Identifier: Apache-2.0
// The rule of the adversarial scheduler: how long which task is held back. Pure; who sleeps is
// schedule.h's.
#pragma once

#include <cstdint>

namespace emu {

// For one task, in microseconds: 15 of 16 tasks none, most others 50 us to 1 ms, a few up to 4 ms,
// so that whole batches of another stream's tasks overtake.
uint32_t delay_us(uint64_t seed, int device, uint64_t stream, uint64_t task);

// The same before or after an external event's record, wait or reset: every second time, for 50 us
// to 1 ms.
uint32_t event_delay_us(uint64_t seed, uint64_t stream, uint64_t task);

}  // namespace emu
