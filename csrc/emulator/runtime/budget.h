// SPDX-License-Identifier: Apache-2.0
// What a device has a fixed number of: streams and events. A ticket is one of them, given back when
// it goes. Who holds which is said where tickets are taken.
#pragma once

#include <optional>
#include <utility>

#include "runtime/device.h"

namespace emu {

enum class Resource : uint8_t { kStream, kEvent };

class Ticket {
 public:
  Ticket() = default;
  Ticket(Ticket&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), resource_(other.resource_) {}
  Ticket& operator=(Ticket&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(resource_, other.resource_);
    return *this;
  }
  ~Ticket();

  bool held() const { return device_ != nullptr; }

 private:
  friend std::optional<Ticket> take(const Device& device, Resource resource);
  Ticket(const Device* device, Resource resource) : device_(device), resource_(resource) {}

  const Device* device_ = nullptr;
  Resource resource_ = Resource::kStream;
};

// Nothing if the device has none left.
std::optional<Ticket> take(const Device& device, Resource resource);

// Reports that take() gave nothing. `code` is what CANN returns at that place.
aclError fail_exhausted(aclError code, const char* api, const Device& device, Resource resource);

}  // namespace emu
