// SPDX-License-Identifier: Apache-2.0
// Phase 1 and phase 2 of every operator, without their parameters: resolving handles, the executor,
// the errors. No operator may be defined here.
#include "ops/operator.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>

// Of the OpenMP and MKL that torch brings; absent in a torch without them. Both set the count of
// the calling thread only, so that the application's own operators keep theirs.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace emu::ops {
namespace {

constexpr int kParameterInvalid = 161002;  // ACLNN_ERR_PARAM_INVALID
constexpr int kNotImplemented = 561003;    // ACLNN_ERR_INNER_FIND_KERNEL_ERROR

// In task-queue mode 2 phase 1 runs on torch_npu's queue thread, which drops the error and goes on
// with operators that read what this one should have written.
bool phase1_errors_are_dropped() {
  static const bool dropped = [] {
    const char* mode = std::getenv("TASK_QUEUE_ENABLE");
    return mode != nullptr && std::string_view(mode) == "2";
  }();
  return dropped;
}

// Stream workers share the processors with the threads that feed them, and OpenMP's threads spin:
// by default an operator uses half of the processors. OMP_NUM_THREADS, if set, decides instead.
void settle_thread_count() {
  thread_local const bool settled = [] {
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      at::get_num_threads();  // ATen's own initialisation of this thread comes first
      const int threads = std::max(1U, std::thread::hardware_concurrency() / 2);
      if (omp_set_num_threads != nullptr) {
        omp_set_num_threads(threads);
      }
      if (MKL_Set_Num_Threads_Local != nullptr) {
        MKL_Set_Num_Threads_Local(threads);
      }
    }
    return true;
  }();
  static_cast<void>(settled);
}

int report(int code, const std::string& text) {
  if (phase1_errors_are_dropped()) {
    poison(text + " (in TASK_QUEUE_ENABLE=2 torch_npu would go on without this result)");
  }
  return fail(code, text);
}

// Bytes from the first to the last element of a view.
size_t extent_bytes(const aclTensor& tensor) {
  int64_t last = 0;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) {
      return 0;
    }
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(tensor.dtype);
}

// The runs of consecutive bytes of a view, as [offset, length], where the order checker asks and
// there are few; else the whole extent.
std::vector<std::pair<size_t, size_t>> runs_of(const aclTensor& tensor, size_t extent) {
  constexpr size_t kMostRuns = 256;
  if (!is_checking()) return {{0, extent}};
  const size_t item = c10::elementSize(tensor.dtype);
  size_t dim = tensor.sizes.size();
  int64_t run = 1;  // elements
  while (dim > 0 && (tensor.sizes[dim - 1] == 1 || tensor.strides[dim - 1] == run)) {
    run *= tensor.sizes[--dim];
  }
  std::vector<std::pair<size_t, size_t>> runs{{0, static_cast<size_t>(run) * item}};
  for (; dim > 0; --dim) {
    const size_t count = runs.size();
    const auto size = static_cast<size_t>(tensor.sizes[dim - 1]);
    const int64_t stride = tensor.strides[dim - 1];
    if (stride < 0 || count * size > kMostRuns) return {{0, extent}};
    if (stride == 0) continue;  // one row, seen again and again
    for (size_t i = 1; i < size; ++i) {
      for (size_t k = 0; k < count; ++k) {
        runs.emplace_back(runs[k].first + i * static_cast<size_t>(stride) * item, runs[k].second);
      }
    }
  }
  return runs;
}

std::shared_ptr<const std::string> describe(const aclTensor& tensor) {
  std::ostringstream text;
  text << tensor.dtype << " " << at::IntArrayRef(tensor.sizes);
  return std::make_shared<const std::string>(text.str());
}

}  // namespace

bool is_plain_format(aclFormat format) {
  return format == ACL_FORMAT_ND || format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NHWC ||
         format == ACL_FORMAT_NCDHW || format == ACL_FORMAT_NCL || format == ACL_FORMAT_UNDEFINED;
}

Tensor Loader::view(const aclTensor* handle, Access access) {
  require(is_plain_format(handle->format), "argument ", position_, " has the private format ",
          static_cast<int>(handle->format),
          "; the emulated device implements this operator for plain formats only: pass it as ND "
          "(torch_npu.npu_format_cast(x, 2))");
  const size_t bytes = extent_bytes(*handle);
  require(bytes == 0 || handle->address != nullptr, "argument ", position_, " has ", bytes,
          " bytes but no memory");
  char* first = handle->first_byte();
  if (bytes > 0) {
    const auto tensor = is_checking() ? describe(*handle) : nullptr;
    for (const auto& [offset, length] : runs_of(*handle, bytes)) {
      if (access != Access::kWrite) {
        accesses_.push_back({first + offset, length, false, tensor});
      }
      if (access != Access::kRead) {
        accesses_.push_back({first + offset, length, true, tensor});
      }
    }
  }
  return at::from_blob(bytes > 0 ? host_alias(first) : nullptr, handle->sizes, handle->strides,
                       at::TensorOptions().dtype(handle->dtype));
}

Tensor Loader::tensor(const aclTensor* handle, Access access, bool optional) {
  return checked(handle, optional) == nullptr ? Tensor() : view(handle, access);
}

TensorVector Loader::tensors(const aclTensorList* handle, Access access) {
  TensorVector views;
  if (checked(handle, true) != nullptr) {
    for (const aclTensor* element : handle->elements) {
      require(element == nullptr || element->handle.valid(), "argument ", position_,
              " holds a dead tensor handle");
      views.push_back(element == nullptr ? Tensor() : view(element, access));
    }
  }
  return views;
}

AnyFormat Loader::any_format(const aclTensor* handle, Access access) {
  checked(handle, false);
  aclTensor storage;
  storage.sizes = is_plain_format(handle->format) ? handle->sizes : handle->storage_sizes;
  storage.strides = at::IntArrayRef(c10::contiguous_strides(storage.sizes)).vec();
  storage.offset = handle->offset;
  storage.dtype = handle->dtype;
  storage.address = handle->address;
  return {view(&storage, access), handle->sizes, handle->format};
}

std::vector<Scalar> Argument<std::vector<Scalar>>::load(Loader& loader, C handle) {
  std::vector<Scalar> values;
  if (loader.checked(handle, true) != nullptr) {
    for (const aclScalar* element : handle->elements) {
      values.push_back(element->value);
    }
  }
  return values;
}

void DynamicOut::set(const Tensor& value) const {
  require(handle->handle.valid(), "the handle of an output was destroyed before its operator ran");
  const size_t capacity = extent_bytes(*handle);
  const Tensor contiguous = value.to(handle->dtype).contiguous();
  require(contiguous.nbytes() <= capacity, "the result needs ", contiguous.nbytes(),
          " bytes but its output has ", capacity);
  if (contiguous.nbytes() > 0) {
    std::memcpy(host_alias(handle->first_byte()), contiguous.const_data_ptr(), contiguous.nbytes());
  }
  handle->sizes = contiguous.sizes().vec();
  handle->strides = contiguous.strides().vec();
}

int plan(const char* name, std::function<void()> body, std::vector<ByteRange> accesses,
         bool decides_shape, uint64_t* workspace_size, aclOpExecutor** executor) {
  require(workspace_size != nullptr && executor != nullptr, "workspaceSize or executor is null");
  auto planned = std::make_unique<aclOpExecutor>();
  planned->task.name = name;
  planned->task.kind = TaskKind::kOperator;
  planned->task.accesses = std::move(accesses);
  planned->task.essential = decides_shape;
  planned->task.stack = launch_stack();
  planned->task.body = [name, body = std::move(body)] {
    c10::InferenceMode no_autograd;
    settle_thread_count();
    try {
      body();
    } catch (const c10::Error& error) {
      throw std::runtime_error(std::string(name) + ": " + error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(name) + ": " + error.what());
    }
  };
  *workspace_size = 0;
  *executor = planned.release();
  return ACL_SUCCESS;
}

int refuse(const char* name, const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return report(
      kParameterInvalid,
      std::string(name) + ": " +
          (torch_error != nullptr ? torch_error->what_without_backtrace() : error.what()));
}

int refuse_unimplemented(const char* name, const char* where_to_add) {
  return report(kNotImplemented, std::string(name) +
                                     " is not implemented by the emulated device; add it in "
                                     "csrc/emulator/ops (see " +
                                     where_to_add + ")");
}

int launch(const char* name, aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr || !executor->handle.valid()) {
    return fail(kParameterInvalid, std::string(name) + ": the executor is null or was used before");
  }
  const std::unique_ptr<aclOpExecutor> owned(executor);
  if (is_checking()) {
    if (const aclError error = register_kernel(name)) return error;
  }
  return submit(stream, std::move(owned->task));
}

}  // namespace emu::ops

EMU_API aclError aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  if (executor == nullptr) {
    return ACL_SUCCESS;
  }
  if (!executor->handle.valid()) {
    return emu::fail(161001, "aclDestroyAclOpExecutor: not a live executor");
  }
  const std::unique_ptr<aclOpExecutor> owned(executor);
  return ACL_SUCCESS;
}
