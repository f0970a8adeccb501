// SPDX-License-Identifier: Apache-2.0
// The seam between the runtime (libascendcl) and the libraries built on it (libopapi, libhccl,
// ...). Nothing of the CANN ABI is declared here: only what our own libraries ask of the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "acl/acl_rt.h"

#define EMU_EXPORT __attribute__((visibility("default")))
// A function of the CANN C ABI.
#define EMU_API extern "C" EMU_EXPORT

namespace emu {

enum class TaskKind : uint8_t {
  kOperator,
  kCopy,
  kMemset,
  kEventRecord,
  kEventWait,
  kEventReset,
  kCallback,
  kHostFunction,
  kValueWrite,
  kValueWait,
  kGraphReplay,
  kTaskUpdate,
  kCollective,
  kGraphBranch,  // of a replay, by itself
};

// Bytes that a task touches, named by the address the application holds (not the host alias).
struct ByteRange {
  const void* address;
  size_t bytes;
  bool is_write;
  // What lies there, such as "float32 [4, 4]"; known where the order checker is on.
  std::shared_ptr<const std::string> tensor = nullptr;
};

namespace check {
struct Operation;
}

// Thrown by a body to fail its device with another code than 507015.
class EMU_EXPORT DeviceError : public std::runtime_error {
 public:
  DeviceError(aclError code, const std::string& why) : std::runtime_error(why), code_(code) {}
  aclError code() const { return code_; }

 private:
  aclError code_;
};

// One unit of work on a stream. `name` must have static lifetime. A body that throws
// std::exception puts the device into the error 507015 with that text.
struct Task {
  const char* name;
  TaskKind kind;
  std::function<void()> body;
  std::vector<ByteRange> accesses;
  // Runs with ASCEND_EMU_COMPUTE=0 too: a copy from or to the host, an operator
  // whose output has a shape that it decides.
  bool essential = false;
  // Things that take one task at a time, in the order in which the program gives them: tasks on
  // streams that nothing orders must not share one. Looked at by the order checker only.
  std::vector<const void*> in_turn = {};
  // The order checker's: the Python stack of phase 1 (0: that of the submission), and what it knows
  // of this task since it was submitted.
  uint32_t stack = 0;
  std::shared_ptr<const check::Operation> operation = nullptr;
};

// Queues `task` on `stream` (null: the current device's default stream), or records it in the
// graph that is being captured there. Returns an aclError; never blocks on the device.
EMU_EXPORT aclError submit(aclrtStream stream, Task task);

// Sets the calling thread's recent error message (aclGetRecentErrMsg) and returns `code`.
EMU_EXPORT aclError fail(aclError code, std::string message);

// Declares the emulated device unusable for good: prints `why` once to stderr, and every later
// submit and synchronisation in this process fails with it. For faults after which torch_npu
// would go on with silently wrong results.
EMU_EXPORT void poison(const std::string& why);

// The readable and writable alias of a device address. In guard mode the address that the
// application holds is PROT_NONE; in any other case, and for host memory, it is `address` itself.
EMU_EXPORT void* host_alias(const void* address);

// On a stream's worker: throws if the task must give up, since its stream is being torn down or its
// device has failed. A body that waits for something else than computation (a peer, a host thread)
// calls this at least every kInterruptPollMs, and lets what it throws pass.
EMU_EXPORT void check_interrupted();
inline constexpr int kInterruptPollMs = 10;

// Calls `listener` with the device and the reason whenever a device fails, on the thread that it
// fails on, which may hold locks of the runtime: no call of the runtime is allowed in there.
EMU_EXPORT void on_device_failure(std::function<void(int device, const std::string& why)> listener);

// The order checker is on.
EMU_EXPORT bool is_checking();

// From the body of a task that touches parts of its tensors that only device data tell (blocks of a
// cache): these bytes, by their host alias, instead of all of the tensor that they lie in.
EMU_EXPORT void note_access(const void* alias, size_t bytes, bool is_write);

// From the body of a task that tells another rank something: the order that goes with it, in words,
// and on the other side that it came. Empty where the checker is off.
EMU_EXPORT std::vector<uint32_t> order_to_send();
EMU_EXPORT void order_received(const uint32_t* words, size_t count);

// From construction to destruction the task that calls waits for other ranks. For the checker,
// which asks `are_peers_stalled` whether nothing moves in those either, and tells them by
// `tell_peers` whether nothing does here. Both are called from another thread, never after
// destruction.
class EMU_EXPORT WaitForPeers {
 public:
  WaitForPeers(std::string what, std::function<bool()> are_peers_stalled,
               std::function<void(bool is_stalled)> tell_peers);
  ~WaitForPeers();
  WaitForPeers(const WaitForPeers&) = delete;
  WaitForPeers& operator=(const WaitForPeers&) = delete;
};

// The Python stack of the calling thread, for Task::stack; 0 where the checker is off.
EMU_EXPORT uint32_t launch_stack();

// The calling thread launches the kernel `name`, which its first launch registers. An error if
// another thread is at it (507028), where the checker is strict.
EMU_EXPORT aclError register_kernel(const char* name);

// Device index of a stream (null: the calling thread's current device).
EMU_EXPORT int device_of(aclrtStream stream);

}  // namespace emu
