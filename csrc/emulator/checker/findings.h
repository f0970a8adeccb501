// SPDX-License-Identifier: Apache-2.0
// Findings: what they are, which are suppressed, how they are shown. Whether something is one is
// not decided here.
//
// ---- In-process API (C ABI of libascendcl, made for ctypes) ------------------------------------
//
//   size_t emu_check_json(char* buffer, size_t bytes)
//       Writes the report, NUL-terminated and cut to `bytes`; returns the bytes needed with the
//       NUL. Call with (NULL, 0) first.
//   void emu_check_reset(void)
//       Forgets all findings and all history: everything that happened before counts as ordered.
//   size_t emu_check_looks(uint64_t* numbers, size_t count)
//       Numbers of the operations since then (1 is the first that was submitted), in the order in
//       which their accesses were looked at, cut to `count`. Returns how many there are; no more
//       than the first 4,096 are kept.
//   void emu_check_hold_registration(int on)
//       While it is on, the first launch of a kernel stays at registering it until another thread
//       launches the same, or until it is off: who comes behind a barrier is met without a clock.
//
// ---- How a process ends
// --------------------------------------------------------------------------
//
// Strict: a process that has findings when it exits, none of them suppressed, ends with 66 where it
// would have ended with 0. A call cannot always say so: what it asked for runs later, and whether
// it conflicts is known when the second of two operations runs; a program that waits for nothing
// after that, or that catches the error, would end as a good one.
//
// ---- The report --------------------------------------------------------------------------------
//
//   {"version": 1, "pid": 1, "mode": "report",
//    "findings": [FINDING, ...], "suppressed": [FINDING with "reason", ...]}
//   FINDING = {"kind": "unordered-access", "count": 1, "message": "...", "advice": "...",
//              "range": {"address": "0x...", "bytes": 64} or null, "operations": [OPERATION, ...]}
//   OPERATION = {"name": "aclnnAdd", "access": "write" | "read" | "", "device": 0, "stream": 3,
//                "number": 17, "thread": "python (12)", "tensor": "float32 [4, 4]", "replay": 0,
//                "captured": false, "stack": ["file.py:12 in main"]}
//
// Written to ASCEND_EMU_CHECK_REPORT whenever there is a new finding, and at exit. A file is put in
// its place whole: who reads it while the process runs never sees a part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checker/operation.h"

namespace emu::check {

enum class Kind : uint8_t {
  kUnorderedAccess,      // of device or page-locked memory, by two streams
  kUnorderedUpdate,      // a task of a graph updated while a replay may still need it
  kUnorderedRecord,      // an external event recorded while an earlier replay may still reset it
  kUnorderedCollective,  // of one communicator, by two streams
  kHostSourceChanged,    // under an asynchronous copy from it
  kHostReadEarly,        // of, or write to, what an asynchronous copy still writes
  kHostMemoryFreed,      // under an asynchronous copy
  kUnpinnedAsyncCopy,    // of host memory that is not page-locked
  kUseAfterFree,         // of device memory
  kFreedInUse,           // device memory, under an operation
  kDeadlock,             // nothing moves, and a host thread waits
  kKernelRegistration    // of one kernel, by two threads at once
};

// One side of a finding: an operation and, where it is about memory, its access.
struct Side {
  OperationPtr operation;
  const char* access = "";
  uint64_t replay = 0;
};

struct Finding {
  Kind kind;
  std::string message;
  std::string advice;  // what a person would do about it
  uintptr_t begin = 0;
  uintptr_t end = 0;
  std::vector<Side> sides;
};

// Counts, prints and stores the finding, unless it is suppressed. In strict mode, and for a
// deadlock in any, the device then fails with it. Takes no lock but its own.
void report(const Finding& finding);

// Reads the suppressions; a file that cannot be understood ends the process.
void load_suppressions();

// At exit, once no task runs any more: writes the report and returns the status to end with instead
// of `status`. What libraries still free after that is not the program's doing, and no finding.
int end_of_program(int status);

void forget_findings();

}  // namespace emu::check
