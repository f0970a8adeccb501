// SPDX-License-Identifier: Apache-2.0
// Turns a C++ function over ATen tensors into an aclnn operator with its two C entry points.
//
//   OPERATOR(aclnnFoo, [](In self, int64_t dim, Out out) { ... })
//
// Phase 1, aclnnFooGetWorkspaceSize: its C signature is derived from the parameters of the
// function. The handles are resolved there (torch_npu destroys them before the stream's worker
// runs), the bytes that the operator reads and writes are noted, and CHECKED_OPERATOR's check runs,
// so that a wrong call fails where it is made, under the operator's name. Phase 2, aclnnFoo, queues
// the function.
//
// Parameter types: In, OptIn, InList read device memory; Out, OptOut, OutList write it; InOut,
// InOutList do both; DynamicOut is an output whose shape the operator decides (Nonzero, Unique).
// at::Scalar, std::optional<at::Scalar>, Ints, OptInts, Floats, Bools, at::ScalarType, String and
// plain numbers are values; AnyFormat and AnyFormatOut are tensors in a private format too. The
// width of a number and float against double are part of the ABI: they must be what torch_npu
// passes at its call.
//
// Outputs have their final shape when phase 1 runs, and an operator that would resize one is an
// error. No operator may be defined here.
#pragma once

#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/descriptor.h"

namespace emu::ops {

using at::Scalar;
using at::ScalarType;
using at::Tensor;

using In = const Tensor&;
struct Out : Tensor {
  using Tensor::Tensor;
  Out(const Tensor& tensor) : Tensor(tensor) {}  // NOLINT(google-explicit-constructor)
};
struct InOut : Tensor {
  using Tensor::Tensor;
  InOut(const Tensor& tensor) : Tensor(tensor) {}  // NOLINT(google-explicit-constructor)
};
using OptIn = const std::optional<Tensor>&;
// Undefined where the caller passed null.
struct OptOut : Tensor {
  using Tensor::Tensor;
  OptOut(const Tensor& tensor) : Tensor(tensor) {}  // NOLINT(google-explicit-constructor)
};
struct OptInOut : Tensor {
  using Tensor::Tensor;
  OptInOut(const Tensor& tensor) : Tensor(tensor) {}  // NOLINT(google-explicit-constructor)
};
using TensorVector = std::vector<Tensor>;
using InList = const TensorVector&;
struct OutList : TensorVector {};
struct InOutList : TensorVector {};
struct DynamicOut {
  aclTensor* handle;
  // Copies `value` into the memory of the handle and gives the handle its shape.
  void set(const Tensor& value) const;
};
// A tensor in any format: its storage as it lies in memory, and the shape that it stands for.
struct AnyFormat {
  Tensor storage;
  std::vector<int64_t> sizes;
  aclFormat format;
};
struct AnyFormatOut : AnyFormat {};
// Whether a tensor of this format is its elements in the order of its strides.
bool is_plain_format(aclFormat format);
using Ints = const std::vector<int64_t>&;
using OptInts = const std::optional<std::vector<int64_t>>&;
using Floats = const std::vector<float>&;
using Bools = const std::vector<uint8_t>&;
using Scalars = const std::vector<Scalar>&;
using String = const std::string&;
using OptScalar = const std::optional<Scalar>&;

// A failed check of phase 1, or of device data when the operator runs. The operator's name is put
// before the text by the machinery.
struct RuleError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    std::ostringstream text;
    (text << ... << parts);
    throw RuleError(text.str());
  }
}

// Resolves the handles of one call.
class Loader {
 public:
  enum class Access : uint8_t { kRead, kWrite, kReadWrite };
  Tensor tensor(const aclTensor* handle, Access access, bool optional);
  TensorVector tensors(const aclTensorList* handle, Access access);
  AnyFormat any_format(const aclTensor* handle, Access access);
  template <class T>
  const T* checked(const T* handle, bool optional) {
    ++position_;
    if (handle == nullptr) {
      require(optional, "argument ", position_, " is null, which this operator does not accept");
    } else {
      require(handle->handle.valid(), "argument ", position_, " is not a live handle of its type");
    }
    return handle;
  }
  void skip() { ++position_; }
  std::vector<ByteRange> take_accesses() { return std::move(accesses_); }

 private:
  Tensor view(const aclTensor* handle, Access access);
  int position_ = 0;
  std::vector<ByteRange> accesses_;
};

// Argument<P>: the C type of a parameter of decayed type P, and how it is loaded.
template <class P>
struct Argument {
  static_assert(std::is_arithmetic_v<P>, "this parameter type has no C ABI");
  using C = P;
  static P load(Loader& loader, C value) {
    loader.skip();
    return value;
  }
};

template <class P, Loader::Access kAccess, bool kOptional>
struct TensorArgument {
  using C = const aclTensor*;
  static P load(Loader& loader, C handle) { return loader.tensor(handle, kAccess, kOptional); }
};
template <>
struct Argument<Tensor> : TensorArgument<Tensor, Loader::Access::kRead, false> {};
template <>
struct Argument<Out> : TensorArgument<Out, Loader::Access::kWrite, false> {};
template <>
struct Argument<InOut> : TensorArgument<InOut, Loader::Access::kReadWrite, false> {};
template <>
struct Argument<OptOut> : TensorArgument<OptOut, Loader::Access::kWrite, true> {};
template <>
struct Argument<OptInOut> : TensorArgument<OptInOut, Loader::Access::kReadWrite, true> {};
template <>
struct Argument<std::optional<Tensor>> {
  using C = const aclTensor*;
  static std::optional<Tensor> load(Loader& loader, C handle) {
    Tensor tensor = loader.tensor(handle, Loader::Access::kRead, true);
    return tensor.defined() ? std::optional<Tensor>(std::move(tensor)) : std::nullopt;
  }
};
template <class P, Loader::Access kAccess>
struct TensorListArgument {
  using C = const aclTensorList*;
  static P load(Loader& loader, C handle) { return {loader.tensors(handle, kAccess)}; }
};
template <>
struct Argument<TensorVector> : TensorListArgument<TensorVector, Loader::Access::kRead> {};
template <>
struct Argument<OutList> : TensorListArgument<OutList, Loader::Access::kWrite> {};
template <>
struct Argument<InOutList> : TensorListArgument<InOutList, Loader::Access::kReadWrite> {};
template <>
struct Argument<DynamicOut> {
  using C = aclTensor*;
  static DynamicOut load(Loader& loader, C handle) {
    loader.tensor(handle, Loader::Access::kWrite, false);
    return {handle};
  }
};
template <>
struct Argument<AnyFormat> {
  using C = const aclTensor*;
  static AnyFormat load(Loader& loader, C handle) {
    return loader.any_format(handle, Loader::Access::kRead);
  }
};
template <>
struct Argument<AnyFormatOut> {
  using C = const aclTensor*;
  static AnyFormatOut load(Loader& loader, C handle) {
    return {loader.any_format(handle, Loader::Access::kWrite)};
  }
};
template <>
struct Argument<Scalar> {
  using C = const aclScalar*;
  static Scalar load(Loader& loader, C handle) { return loader.checked(handle, false)->value; }
};
template <>
struct Argument<std::optional<Scalar>> {
  using C = const aclScalar*;
  static std::optional<Scalar> load(Loader& loader, C handle) {
    return loader.checked(handle, true) ? std::optional<Scalar>(handle->value) : std::nullopt;
  }
};
template <class Array>
struct ArrayArgument {
  using C = const Array*;
  static auto load(Loader& loader, C handle) {
    return loader.checked(handle, true) ? handle->values : decltype(handle->values){};
  }
};
template <>
struct Argument<std::vector<int64_t>> : ArrayArgument<aclIntArray> {};
template <>
struct Argument<std::vector<float>> : ArrayArgument<aclFloatArray> {};
template <>
struct Argument<std::vector<uint8_t>> : ArrayArgument<aclBoolArray> {};
template <>
struct Argument<std::optional<std::vector<int64_t>>> {
  using C = const aclIntArray*;
  static std::optional<std::vector<int64_t>> load(Loader& loader, C handle) {
    if (loader.checked(handle, true) == nullptr) {
      return std::nullopt;
    }
    return handle->values;
  }
};
template <>
struct Argument<std::vector<Scalar>> {
  using C = const aclScalarList*;
  static std::vector<Scalar> load(Loader& loader, C handle);
};
template <>
struct Argument<ScalarType> {
  using C = aclDataType;
  static ScalarType load(Loader& loader, C value) {
    loader.skip();
    return to_scalar_type(value);
  }
};
template <>
struct Argument<std::string> {
  using C = const char*;
  static std::string load(Loader& loader, C value) {
    loader.skip();
    return value == nullptr ? std::string() : std::string(value);
  }
};

}  // namespace emu::ops

// A planned call: what phase 1 hands to phase 2.
struct aclOpExecutor {
  emu::ops::Handle<0xAC1E7EC1> handle;
  emu::Task task;
};

namespace emu::ops {

// What phase 1 returns: success and a new executor, or the error with the operator's name before
// it.
// `decides_shape`: the host reads the shape of an output, so that the operator runs even where the
// device computes nothing (ASCEND_EMU_COMPUTE=0).
int plan(const char* name, std::function<void()> body, std::vector<ByteRange> accesses,
         bool decides_shape, uint64_t* workspace_size, aclOpExecutor** executor);
int refuse(const char* name, const std::exception& error);
int refuse_unimplemented(const char* name, const char* where_to_add);
// Phase 2. Consumes the executor.
int launch(const char* name, aclOpExecutor* executor, aclrtStream stream);

// Throws if `tensor` no longer has the shape that its descriptor gave it.
template <class P>
struct OutputShape {
  static std::vector<int64_t> of(const P&) { return {}; }
  static void check(const P&, const std::vector<int64_t>&) {}
};
template <class P>
  requires std::is_base_of_v<Tensor, P>
struct OutputShape<P> {
  static std::vector<int64_t> of(const P& tensor) {
    return tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>{};
  }
  static void check(const P& tensor, const std::vector<int64_t>& sizes) {
    require(!tensor.defined() || tensor.sizes() == at::IntArrayRef(sizes), "the result has shape ",
            tensor.sizes(), " but the output was given as ", at::IntArrayRef(sizes));
  }
};
template <>
struct OutputShape<Tensor> {
  static std::vector<int64_t> of(const Tensor&) { return {}; }
  static void check(const Tensor&, const std::vector<int64_t>&) {}
};

// One instance for each distinct parameter list, shared by the operators that have it.
template <class... Params>
struct Signature {
  using Function = void (*)(Params...);
  using Loaded = std::tuple<std::decay_t<Params>...>;

  static int plan_call(const char* name, Function check, Function body, uint64_t* workspace_size,
                       aclOpExecutor** executor,
                       typename Argument<std::decay_t<Params>>::C... arguments) {
    try {
      Loader loader;
      // Braces: the arguments are loaded from left to right.
      Loaded loaded{Argument<std::decay_t<Params>>::load(loader, arguments)...};
      if (check != nullptr) {
        std::apply(check, loaded);
      }
      return plan(
          name,
          [body, loaded = std::move(loaded)]() mutable {
            run(body, loaded, std::index_sequence_for<Params...>{});
          },
          loader.take_accesses(), (std::is_same_v<std::decay_t<Params>, DynamicOut> || ...),
          workspace_size, executor);
    } catch (const std::exception& error) {
      return refuse(name, error);
    }
  }

 private:
  template <size_t... kIndex>
  static void run(Function body, Loaded& loaded, std::index_sequence<kIndex...>) {
    const std::vector<int64_t> shapes[] = {
        OutputShape<std::decay_t<Params>>::of(std::get<kIndex>(loaded))...};
    body(std::get<kIndex>(loaded)...);
    (OutputShape<std::decay_t<Params>>::check(std::get<kIndex>(loaded), shapes[kIndex]), ...);
  }
};

// The C function of phase 1 for one operator.
template <class Function, auto kName, auto kCheck, auto kBody>
struct Entry;
template <class... Params, auto kName, auto kCheck, auto kBody>
struct Entry<void (*)(Params...), kName, kCheck, kBody> {
  // The type of the C function.
  using Phase1 = int(typename Argument<std::decay_t<Params>>::C..., uint64_t*, aclOpExecutor**);

  static int get_workspace_size(typename Argument<std::decay_t<Params>>::C... arguments,
                                uint64_t* workspace_size, aclOpExecutor** executor) {
    return Signature<Params...>::plan_call(kName(), kCheck, kBody, workspace_size, executor,
                                           arguments...);
  }
  // A question about memory only: checks the call and plans nothing.
  static int get_max_workspace_size(typename Argument<std::decay_t<Params>>::C... arguments,
                                    uint64_t* workspace_size, aclOpExecutor** executor) {
    const int status = get_workspace_size(arguments..., workspace_size, executor);
    delete *executor;
    *executor = nullptr;
    return status;
  }
};

}  // namespace emu::ops

// C++ cannot define a function whose parameter list is a pack under a C name of its own; an ifunc,
// whose resolver returns the address of the template's instance, can.
#define EMU_OPERATOR_ENTRIES_(name, check, body)                                                   \
  namespace {                                                                                      \
  constexpr auto name##_name = [] { return #name; };                                               \
  using name##_entry =                                                                             \
      emu::ops::Entry<std::remove_const_t<decltype(body)>, name##_name, check, body>;              \
  }                                                                                                \
  extern "C" {                                                                                     \
  name##_entry::Phase1* name##_resolve() { return &name##_entry::get_workspace_size; }             \
  EMU_EXPORT __attribute__((ifunc(#name "_resolve"))) name##_entry::Phase1 name##GetWorkspaceSize; \
  EMU_EXPORT int name(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) {              \
    return emu::ops::launch(#name, executor, stream);                                              \
  }                                                                                                \
  }

#define OPERATOR(name, ...)                      \
  namespace {                                    \
  constexpr auto name##_function = +__VA_ARGS__; \
  }                                              \
  EMU_OPERATOR_ENTRIES_(name, nullptr, name##_function)

// `check` is a function with the parameters of the operator; it runs in phase 1.
#define CHECKED_OPERATOR(name, check, ...)       \
  namespace {                                    \
  constexpr auto name##_function = +__VA_ARGS__; \
  }                                              \
  EMU_OPERATOR_ENTRIES_(name, check, name##_function)

// For an operator whose workspace torch_npu asks for before a capture.
#define MAX_WORKSPACE(name)                                                                    \
  extern "C" {                                                                                 \
  name##_entry::Phase1* name##_resolve_max() { return &name##_entry::get_max_workspace_size; } \
  EMU_EXPORT                                                                                   \
  __attribute__((ifunc(#name "_resolve_max"))) name##_entry::Phase1 name##GetMaxWorkspaceSize; \
  }
