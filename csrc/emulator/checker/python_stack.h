// SPDX-License-Identifier: Apache-2.0
// The Python frames of the calling thread, where there is an interpreter in the process. Its API is
// looked up at run time: nothing here links to Python.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emu::check {

// Of an interned stack; 0 is no stack.
using StackId = uint32_t;

// Innermost first, at most ASCEND_EMU_CHECK_DEPTH frames, those of torch itself left out. Takes the
// interpreter's lock: to be called without any of ours. 0 on a thread that Python does not know.
StackId capture_stack();

// "file.py:12 in function", innermost first.
std::vector<std::string> frames(StackId stack);

// The calling thread's name and id.
std::string thread_name();

}  // namespace emu::check
