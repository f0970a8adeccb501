// SPDX-License-Identifier: Apache-2.0
// Creation, destruction and inspection of the aclnn handles. No operator may be defined here.
#include "ops/descriptor.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace emu::ops {

std::atomic<int64_t>& live_handle_count() {
  static std::atomic<int64_t> count{0};
  return count;
}

at::ScalarType to_scalar_type(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT:
      return at::kFloat;
    case ACL_FLOAT16:
      return at::kHalf;
    case ACL_BF16:
      return at::kBFloat16;
    case ACL_DOUBLE:
      return at::kDouble;
    case ACL_INT8:
      return at::kChar;
    case ACL_INT16:
      return at::kShort;
    case ACL_INT32:
      return at::kInt;
    case ACL_INT64:
      return at::kLong;
    case ACL_UINT8:
      return at::kByte;
    case ACL_UINT16:
      return at::kUInt16;
    case ACL_UINT32:
      return at::kUInt32;
    case ACL_UINT64:
      return at::kUInt64;
    case ACL_BOOL:
      return at::kBool;
    case ACL_COMPLEX64:
      return at::kComplexFloat;
    case ACL_COMPLEX128:
      return at::kComplexDouble;
    case ACL_FLOAT8_E5M2:
      return at::kFloat8_e5m2;
    case ACL_FLOAT8_E4M3FN:
      return at::kFloat8_e4m3fn;
    default:
      throw std::invalid_argument("aclDataType " + std::to_string(static_cast<int>(dtype)) +
                                  " is not supported by the emulated device");
  }
}

namespace {

constexpr aclError kInvalidParameter = 161001;  // ACLNN_ERR_PARAM_NULLPTR in aclnn's numbering

at::Scalar read_scalar(const void* value, aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT:
      return *static_cast<const float*>(value);
    case ACL_DOUBLE:
      return *static_cast<const double*>(value);
    case ACL_FLOAT16:
      return static_cast<float>(*static_cast<const c10::Half*>(value));
    case ACL_BF16:
      return static_cast<float>(*static_cast<const c10::BFloat16*>(value));
    case ACL_INT8:
      return *static_cast<const int8_t*>(value);
    case ACL_INT16:
      return *static_cast<const int16_t*>(value);
    case ACL_INT32:
      return *static_cast<const int32_t*>(value);
    case ACL_INT64:
      return *static_cast<const int64_t*>(value);
    case ACL_UINT8:
      return *static_cast<const uint8_t*>(value);
    case ACL_UINT16:
      return static_cast<int64_t>(*static_cast<const uint16_t*>(value));
    case ACL_UINT32:
      return static_cast<int64_t>(*static_cast<const uint32_t*>(value));
    case ACL_UINT64:
      return *static_cast<const uint64_t*>(value);
    case ACL_BOOL:
      return *static_cast<const bool*>(value);
    case ACL_COMPLEX64:
      return *static_cast<const c10::complex<float>*>(value);
    case ACL_COMPLEX128:
      return *static_cast<const c10::complex<double>*>(value);
    default:
      throw std::invalid_argument("aclDataType " + std::to_string(static_cast<int>(dtype)) +
                                  " is not supported for a scalar by the emulated device");
  }
}

// Runs `make` and hands the handle to the caller of the C ABI, who destroys it.
template <class Make>
auto create(const char* function, Make make) -> decltype(make().release()) {
  try {
    return make().release();
  } catch (const std::exception& error) {
    fail(kInvalidParameter, std::string(function) + ": " + error.what());
    return nullptr;
  }
}

template <class T>
aclError destroy(const char* function, const T* handle) {
  if (handle == nullptr) {
    return ACL_SUCCESS;
  }
  if (!handle->handle.valid()) {
    return fail(kInvalidParameter, std::string(function) +
                                       ": not a live handle of this type (destroyed twice, or a "
                                       "handle of another type)");
  }
  std::unique_ptr<const T> owned(handle);
  return ACL_SUCCESS;
}

template <class Array, class T>
std::unique_ptr<Array> make_array(const T* values, uint64_t count) {
  auto array = std::make_unique<Array>();
  if (count > 0) {
    array->values.assign(values, values + count);
  }
  return array;
}

// The caller owns the array that is returned through `dims` (delete[]).
aclError copy_dims(const char* function, const aclTensor* tensor,
                   const std::vector<int64_t> aclTensor::* field, int64_t** dims, uint64_t* count) {
  if (tensor == nullptr || !tensor->handle.valid() || dims == nullptr || count == nullptr) {
    return fail(kInvalidParameter, std::string(function) + ": null or dead argument");
  }
  const std::vector<int64_t>& values = tensor->*field;
  auto copy = std::make_unique<int64_t[]>(values.size());
  std::copy(values.begin(), values.end(), copy.get());
  *dims = copy.release();
  *count = values.size();
  return ACL_SUCCESS;
}

}  // namespace
}  // namespace emu::ops

aclTensorList::~aclTensorList() {
  for (aclTensor* element : elements) {
    std::unique_ptr<aclTensor> owned(element);
  }
}

aclScalarList::~aclScalarList() {
  for (aclScalar* element : elements) {
    std::unique_ptr<aclScalar> owned(element);
  }
}

using namespace emu::ops;

// Handles that exist now in this process; for tests that look for leaks.
EMU_API int64_t emuLiveOperatorHandles() { return live_handle_count().load(); }

EMU_API aclTensor* aclCreateTensor(const int64_t* view_dims, uint64_t view_dims_num,
                                   aclDataType data_type, const int64_t* stride, int64_t offset,
                                   aclFormat format, const int64_t* storage_dims,
                                   uint64_t storage_dims_num, void* tensor_data) {
  return create("aclCreateTensor", [&] {
    auto tensor = std::make_unique<aclTensor>();
    if (view_dims_num > 0) {
      tensor->sizes.assign(view_dims, view_dims + view_dims_num);
    }
    if (stride != nullptr) {
      tensor->strides.assign(stride, stride + view_dims_num);
    } else {
      tensor->strides.resize(view_dims_num);
      int64_t step = 1;
      for (size_t i = view_dims_num; i-- > 0;) {
        tensor->strides[i] = step;
        step *= tensor->sizes[i];
      }
    }
    if (storage_dims_num > 0) {
      tensor->storage_sizes.assign(storage_dims, storage_dims + storage_dims_num);
    }
    tensor->offset = offset;
    tensor->dtype = to_scalar_type(data_type);
    tensor->format = format;
    tensor->address = tensor_data;
    return tensor;
  });
}

EMU_API aclScalar* aclCreateScalar(void* value, aclDataType data_type) {
  return create("aclCreateScalar", [&] {
    if (value == nullptr) {
      throw std::invalid_argument("value is null");
    }
    auto scalar = std::make_unique<aclScalar>();
    scalar->value = read_scalar(value, data_type);
    return scalar;
  });
}

EMU_API aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return create("aclCreateIntArray", [&] { return make_array<aclIntArray>(value, size); });
}

EMU_API aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return create("aclCreateFloatArray", [&] { return make_array<aclFloatArray>(value, size); });
}

EMU_API aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return create("aclCreateBoolArray", [&] { return make_array<aclBoolArray>(value, size); });
}

EMU_API aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return create("aclCreateTensorList", [&] {
    auto list = std::make_unique<aclTensorList>();
    for (uint64_t i = 0; i < size; ++i) {
      list->elements.push_back(const_cast<aclTensor*>(value[i]));
    }
    return list;
  });
}

EMU_API aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  return create("aclCreateScalarList", [&] {
    auto list = std::make_unique<aclScalarList>();
    for (uint64_t i = 0; i < size; ++i) {
      list->elements.push_back(const_cast<aclScalar*>(value[i]));
    }
    return list;
  });
}

EMU_API aclError aclDestroyTensor(const aclTensor* tensor) {
  return destroy("aclDestroyTensor", tensor);
}
EMU_API aclError aclDestroyScalar(const aclScalar* scalar) {
  return destroy("aclDestroyScalar", scalar);
}
EMU_API aclError aclDestroyIntArray(const aclIntArray* array) {
  return destroy("aclDestroyIntArray", array);
}
EMU_API aclError aclDestroyFloatArray(const aclFloatArray* array) {
  return destroy("aclDestroyFloatArray", array);
}
EMU_API aclError aclDestroyBoolArray(const aclBoolArray* array) {
  return destroy("aclDestroyBoolArray", array);
}
EMU_API aclError aclDestroyTensorList(const aclTensorList* list) {
  return destroy("aclDestroyTensorList", list);
}
EMU_API aclError aclDestroyScalarList(const aclScalarList* list) {
  return destroy("aclDestroyScalarList", list);
}

EMU_API aclError aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* count) {
  return copy_dims("aclGetViewShape", tensor, &aclTensor::sizes, dims, count);
}
EMU_API aclError aclGetViewStrides(const aclTensor* tensor, int64_t** dims, uint64_t* count) {
  return copy_dims("aclGetViewStrides", tensor, &aclTensor::strides, dims, count);
}
EMU_API aclError aclGetStorageShape(const aclTensor* tensor, int64_t** dims, uint64_t* count) {
  return copy_dims("aclGetStorageShape", tensor, &aclTensor::storage_sizes, dims, count);
}
