// SPDX-License-Identifier: Apache-2.0
// The handles of the aclnn ABI: tensors, scalars, arrays, lists. A handle only describes; what it
// describes is turned into ATen values by operator.h, and nothing here computes or queues.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/api.h"

namespace emu::ops {

// First member of each handle. A pointer to something else, or to a destroyed handle, is told apart
// by its magic number, which is different for each type of handle.
template <uint32_t kMagic>
class Handle {
 public:
  Handle() { live_handles().fetch_add(1, std::memory_order_relaxed); }
  ~Handle() {
    magic_ = 0;
    live_handles().fetch_sub(1, std::memory_order_relaxed);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  bool valid() const { return magic_ == kMagic; }

 private:
  static std::atomic<int64_t>& live_handles();
  volatile uint32_t magic_ = kMagic;
};

// Handles of every type that were created and not destroyed.
std::atomic<int64_t>& live_handle_count();

template <uint32_t kMagic>
std::atomic<int64_t>& Handle<kMagic>::live_handles() {
  return live_handle_count();
}

// Throws std::invalid_argument for a dtype that ATen cannot represent.
at::ScalarType to_scalar_type(aclDataType dtype);

}  // namespace emu::ops

// The ABI names these types at global scope.
struct aclTensor {
  emu::ops::Handle<0xAC17E501> handle;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::vector<int64_t> storage_sizes;
  int64_t offset = 0;  // elements
  at::ScalarType dtype = at::kFloat;
  aclFormat format = ACL_FORMAT_ND;
  void* address = nullptr;  // of the storage, as the application knows it

  // First byte of the described view, as the application knows it.
  char* first_byte() const {
    return static_cast<char*>(address) + offset * static_cast<int64_t>(c10::elementSize(dtype));
  }
};

struct aclScalar {
  emu::ops::Handle<0xAC15CA01> handle;
  at::Scalar value;
};

struct aclIntArray {
  emu::ops::Handle<0xAC111A01> handle;
  std::vector<int64_t> values;
};

struct aclFloatArray {
  emu::ops::Handle<0xAC1F1A01> handle;
  std::vector<float> values;
};

struct aclBoolArray {
  emu::ops::Handle<0xAC1B1A01> handle;
  std::vector<uint8_t> values;
};

// Owns its elements: aclDestroyTensorList destroys them too, as in CANN.
struct aclTensorList {
  emu::ops::Handle<0xAC17E511> handle;
  std::vector<aclTensor*> elements;
  ~aclTensorList();
};

struct aclScalarList {
  emu::ops::Handle<0xAC15CA11> handle;
  std::vector<aclScalar*> elements;
  ~aclScalarList();
};
