// SPDX-License-Identifier: Apache-2.0
// The little JSON that reports are written in. What is reported is not known here.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace emu {

inline void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

// How the in-process APIs hand a text over: NUL-terminated and cut to `bytes`; returns the bytes
// needed with the NUL.
inline size_t copy_out(const std::string& text, char* buffer, size_t bytes) {
  if (buffer && bytes) {
    size_t length = std::min(bytes - 1, text.size());
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
}

}  // namespace emu
