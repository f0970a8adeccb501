// SPDX-License-Identifier: Apache-2.0
// Counters: what the application asked of the device, and how long its threads waited for it.
// Counting never blocks: each thread owns an array, readers add the arrays up.
//
// ---- In-process API (C ABI of libascendcl, made for ctypes) ------------------------------------
//
//   size_t emu_counters_json(char* buffer, size_t bytes)
//       Writes the whole snapshot, NUL-terminated and cut to `bytes`; returns the bytes needed with
//       the NUL. Call with (NULL, 0) first; ask for some slack, since other threads go on counting.
//   void   emu_counters_reset(void)
//       Starts all counters and step aggregates from zero. Not inside a step.
//   int    emu_step_begin(const char* label)      int emu_step_end(void)
//       Mark a step on the calling thread. Everything counted between the two, by this thread and
//       by all others, is added to the aggregate of `label`. Steps of one thread do not nest; steps
//       of several threads may overlap, and each then counts the other under "other_threads". 0 if
//       done, -1 if misused (nested begin, end without begin, null label).
//       With TASK_QUEUE_ENABLE=1 torch_npu launches operators and asynchronous copies from a thread
//       of its own, so that they count under "other_threads", and those that the queue still holds
//       at the end of a step fall into the next: only averages over many steps are exact, or steps
//       that end with a synchronisation.
//   uint64_t emu_pinned_allocations(void)
//       Pinned allocations and host registrations made so far in this process; never goes down, and
//       emu_counters_reset() leaves it alone.
//   const char* emu_version(void)
//       Version of the emulator. Its presence tells an emulated device from a real one.
//
// At exit the same JSON is written to ASCEND_EMU_COUNTERS, if the process used a device and leaves
// through exit() (not through _exit or a signal).
//
// ---- The snapshot ------------------------------------------------------------------------------
//
//   {"version": 1, "pid": 1, "pinned_allocations": 0,
//    "total": COUNTERS,                                    all threads, dead ones included
//    "threads": [{"tid": 1, "name": "python", "alive": true, "counters": COUNTERS}, ...],
//    "graphs": [{"id": 1, "device": 0, "nodes": 170, "streams": 1, "events": 0, "task_groups": 3,
//                "replays": 50, "updates": 150}, ...],     those that exist; replays that began
//    "steps": {"LABEL": {"count": 1, "this_thread": COUNTERS, "other_threads": COUNTERS}, ...}}
//
//   COUNTERS = {
//    "copies": {"h2d": {"sync": {"pinned": N, "pageable": N}, "async": {...}}, "d2h": ..., "h2h":
//    ...,
//               "d2d": {"sync": N, "async": N}},            N = {"count": 0, "bytes": 0}
//        sync is aclrtMemcpy; async is aclrtMemcpyAsync, whose pageable copies wait (below). pinned
//        means that the host side is page-locked or registered; of h2h, that both sides are.
//    "host_waits": {"aclrtSynchronizeStream": {"count": 0, "blocked": 0, "ns": 0}, ...},
//        count: calls; blocked: those that really had to wait; ns: time spent waiting.
//    "launches": {"aclnnAdd": 1, ...}, "collectives": {...}, by name, those that happened;
//    "replayed": {"aclnnAdd": 1, "memcpy_h2d": 1, ...},     tasks of replays, by name, counted on
//        the thread that submits the replay, and in none of the other counters
//    "launch_count": 0, "collective_count": 0, "replayed_count": 0, "host_wait_count": 0,
//    "host_wait_blocked": 0, "host_wait_ns": 0,             sums of the above
//    "event_records", "event_waits", "event_resets", "event_queries", "events_created",
//    "events_destroyed", "streams_created", "streams_destroyed", "stream_queries", "callbacks",
//    "host_functions", "value_writes", "value_waits", "memsets", "graph_captures", "graph_replays",
//    "task_updates", "captured_nodes", "graphs_destroyed", "external_event_records",
//    "external_event_waits", "external_event_resets",
//    "schedule_delays",
//        What a stream is asked while it is captured counts as captured_nodes and as nothing else.
//        task_updates: task groups updated. External events count under event_* too; those of
//        torch_npu are words of memory and count as value_writes (record, reset) and value_waits.
//        schedule_delays: times that the adversarial scheduler held a stream back.
//    "allocations": {"device": {"count": 0, "bytes": 0, "freed": 0, "freed_bytes": 0},
//                    "pinned": ..., "registered": ..., "physical": ...}}
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/api.h"

namespace emu {

enum class Counter : uint16_t {
  kEventRecords,
  kEventWaits,
  kEventResets,
  kEventQueries,
  kEventsCreated,
  kEventsDestroyed,
  kStreamsCreated,
  kStreamsDestroyed,
  kStreamQueries,
  kCallbacks,
  kHostFunctions,
  kValueWrites,
  kValueWaits,
  kMemsets,
  kGraphCaptures,
  kGraphReplays,
  kTaskUpdates,
  kCapturedNodes,
  kGraphsDestroyed,
  kExternalRecords,
  kExternalWaits,
  kExternalResets,
  kScheduleDelays,
  kCount,
};

enum class CopyDirection : uint8_t { kH2D, kD2H, kH2H, kD2D };
enum class AllocationKind : uint8_t { kDevice, kPinned, kRegistered, kPhysical };

void count(Counter counter);
// `name` as in Task. Collectives are apart from operators.
void count_launch(const char* name);
void count_collective(const char* name);
// Tasks that a replay is going to run, counted when it is submitted.
void count_replayed(const char* name, uint64_t tasks);
void count_copy(CopyDirection direction, bool asynchronous, bool pinned, size_t bytes);
void count_allocation(AllocationKind kind, size_t bytes);
void count_free(AllocationKind kind, size_t bytes);

// One host wait of the calling thread, from construction to destruction. A null `api` counts
// nothing.
class HostWait {
 public:
  explicit HostWait(const char* api);
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;
  // The calling thread really has to wait: time runs from here.
  void blocked();

 private:
  const char* api_;
  int64_t start_ns_ = 0;
};

void write_counters_file();

}  // namespace emu
