// SPDX-License-Identifier: Apache-2.0
#include "runtime/budget.h"

#include <array>
#include <atomic>

#include "runtime/config.h"
#include "runtime/error.h"

namespace emu {
namespace {

constexpr size_t kMaximumDevices = 64;  // of ASCEND_EMU_DEVICES

std::atomic<size_t>& used(const Device& device, Resource resource) {
  static std::array<std::array<std::atomic<size_t>, kMaximumDevices>, 2> counts{};
  return counts[static_cast<size_t>(resource)][static_cast<size_t>(device.index())];
}

size_t budget(Resource resource) {
  return resource == Resource::kStream ? config().stream_budget : config().event_budget;
}

}  // namespace

Ticket::~Ticket() {
  if (device_) --used(*device_, resource_);
}

std::optional<Ticket> take(const Device& device, Resource resource) {
  auto& count = used(device, resource);
  size_t now = count.load();
  do {
    if (now >= budget(resource)) return std::nullopt;
  } while (!count.compare_exchange_weak(now, now + 1));
  return Ticket(&device, resource);
}

aclError fail_exhausted(aclError code, const char* api, const Device& device, Resource resource) {
  bool is_stream = resource == Resource::kStream;
  return fail(code, std::string(api) + ": device " + std::to_string(device.index()) + " has no " +
                        (is_stream ? "stream" : "event") + " left of its " +
                        std::to_string(budget(resource)) +
                        (is_stream ? ", of which every created stream takes one and every captured "
                                     "graph one for each stream that took part: capture fewer "
                                     "sizes, or reset graphs (ASCEND_EMU_STREAM_BUDGET)"
                                   : ", of which every external event, every event that was "
                                     "recorded and every record inside a captured graph takes one "
                                     "(ASCEND_EMU_EVENT_BUDGET)"));
}

}  // namespace emu
