// SPDX-License-Identifier: Apache-2.0
// The files that a program leaves about itself (counters, findings, a timeline): each whole or not
// there, and what went wrong is said.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

namespace emu {

// Lets `write` fill the file that `variable` names, `path` as the user gave it (%p is this
// process's id). An earlier file stays where this one cannot be written whole. A failure is one
// line on stderr: the program has ended, and its own result stands.
void write_output_file(const char* variable, const std::string& path,
                       const std::function<void(std::FILE*)>& write);

// Why such a file could not be written, or "" where nothing is in the way.
std::string why_not_writable(const std::string& path);

}  // namespace emu
