// SPDX-License-Identifier: Apache-2.0
// What the test programs of the C ABI share: checks that name the line, and short ways to make
// things. No tests here.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "runtime/api.h"

EMU_API size_t emu_counters_json(char* buffer, size_t bytes);

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (0)

#define OK(call)                                                                          \
  do {                                                                                    \
    if (aclError error = (call)) {                                                        \
      const char* message = aclGetRecentErrMsg();                                         \
      std::fprintf(stderr, "%s:%d: %s: error %d: %s\n", __FILE__, __LINE__, #call, error, \
                   message ? message : "(no message)");                                   \
      std::abort();                                                                       \
    }                                                                                     \
  } while (0)

// The call fails with `code`, and the message contains `text`.
#define FAILS(call, code, text)                                                                    \
  do {                                                                                             \
    aclError error = (call);                                                                       \
    const char* message = aclGetRecentErrMsg();                                                    \
    if (error != (code) || !message || !std::strstr(message, text)) {                              \
      std::fprintf(stderr, "%s:%d: %s: error %d: %s; expected %d: ...%s...\n", __FILE__, __LINE__, \
                   #call, error, message ? message : "(no message)", code, text);                  \
      std::abort();                                                                                \
    }                                                                                              \
  } while (0)

inline aclrtStream make_stream() {
  aclrtStream stream = nullptr;
  OK(aclrtCreateStream(&stream));
  return stream;
}

inline aclrtEvent make_event(uint32_t flags = ACL_EVENT_SYNC) {
  aclrtEvent event = nullptr;
  OK(aclrtCreateEventExWithFlag(&event, flags));
  return event;
}

inline void run(aclrtStream stream, std::function<void()> body,
                const char* name = "test_operator") {
  OK(emu::submit(stream, {name, emu::TaskKind::kOperator, std::move(body), {}}));
}

inline std::string counters() {
  std::string text(emu_counters_json(nullptr, 0) + 4096, '\0');
  text.resize(emu_counters_json(text.data(), text.size()) - 1);
  return text;
}

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
