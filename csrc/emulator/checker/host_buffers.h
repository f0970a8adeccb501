// SPDX-License-Identifier: Apache-2.0
// Host memory under asynchronous copies. From the call until a host thread knows that the copy is
// done, the host must not write what is read, nor touch what is written. Page-locked memory is
// protected for that time, so that whoever touches it is caught in the act; in any case its
// contents are compared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checker/operation.h"

namespace emu::check {

// Page-locked memory that the device reaches at an address of its own. Null (errno set) if there
// is none.
void* allocate_page_locked(size_t bytes);
// False if it is not of allocate_page_locked().
bool free_page_locked(void* address, size_t bytes);
// The device's address of page-locked memory; `address` itself for any other.
void* device_view(const void* address);

// An asynchronous copy between `host` and the device was submitted.
void copy_submitted(const OperationPtr& copy, const void* host, size_t bytes, bool device_writes);

// `copy` was submitted as asynchronous, from or to memory that is not page-locked.
void copy_is_not_pinned(const OperationPtr& copy, bool device_writes);

// It was refused after all.
void copy_dropped(const OperationPtr& copy);

// With the checker's lock.
void copy_begins(const OperationPtr& copy, Epoch epoch);
void host_knows_more();
void forget_copies();

// Reports what was found with the lock. To be called without it.
void report_pending();

// Before page-locked or registered memory goes.
void host_memory_freed(const char* api, const void* address, size_t bytes);

// From the handler of SIGSEGV. True if the access was to page-locked memory and may go on.
bool explain_fault(void* address, bool is_write);

}  // namespace emu::check
