// SPDX-License-Identifier: Apache-2.0
#include "checker/python_stack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

#include "runtime/config.h"

namespace emu::check {
namespace {

// The few functions of CPython's stable API that reading one's own frames takes.
struct Python {
  void* (*this_thread)();
  int (*ensure)();
  void (*release)(int);
  void* (*frame)();
  void* (*code)(void*);
  int (*line)(void*);
  void* (*back)(void*);
  void* (*attribute)(void*, const char*);
  const char* (*text)(void*);
  void (*decrement)(void*);
  int (*is_initialized)();
  void (*clear_error)();

  static const Python* find() {
    static const auto* instance = [] {
      auto python = std::make_unique<Python>();
      bool found = true;
      auto look_up = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
            dlsym(RTLD_DEFAULT, name));
        found = found && function;
      };
      look_up(python->this_thread, "PyGILState_GetThisThreadState");
      look_up(python->ensure, "PyGILState_Ensure");
      look_up(python->release, "PyGILState_Release");
      look_up(python->frame, "PyEval_GetFrame");
      look_up(python->code, "PyFrame_GetCode");
      look_up(python->line, "PyFrame_GetLineNumber");
      look_up(python->back, "PyFrame_GetBack");
      look_up(python->attribute, "PyObject_GetAttrString");
      look_up(python->text, "PyUnicode_AsUTF8");
      look_up(python->decrement, "Py_DecRef");
      look_up(python->is_initialized, "Py_IsInitialized");
      look_up(python->clear_error, "PyErr_Clear");
      return found ? python.release() : nullptr;
    }();
    return instance;
  }
};

struct Code {
  std::string file;
  std::string function;
  bool is_library;  // torch's own: says nothing about who called it
};

struct Interned {
  std::mutex mutex;
  std::map<const void*, Code> codes;  // each kept alive, so that an address means one code
  std::map<std::vector<std::pair<const void*, int>>, StackId> ids;
  std::vector<std::vector<std::string>> stacks{{}};
};

Interned& interned() {
  static auto* instance = new Interned;
  return *instance;
}

bool is_library(const std::string& file) {
  return file.find("/torch/") != std::string::npos ||
         file.find("/torch_npu/") != std::string::npos || file.starts_with("<");
}

std::string attribute_text(const Python& python, void* object, const char* name) {
  void* value = python.attribute(object, name);
  const char* text = value ? python.text(value) : nullptr;
  std::string result = text ? text : "?";
  if (!text) python.clear_error();
  if (value) python.decrement(value);
  return result;
}

}  // namespace

StackId capture_stack() {
  const Python* python = Python::find();
  const size_t depth = config().check_depth;
  if (!python || !depth || !python->is_initialized() || !python->this_thread()) return 0;
  const int state = python->ensure();
  std::vector<std::pair<const void*, int>> key;
  StackId id = 0;
  {
    Interned& all = interned();
    void* frame = python->frame();  // borrowed
    bool is_owned = false;
    while (frame && key.size() < depth) {
      void* code = python->code(frame);
      int line = python->line(frame);
      bool is_new = false;
      {
        std::lock_guard lock(all.mutex);
        is_new = !all.codes.contains(code);
      }
      if (is_new) {
        Code read{attribute_text(*python, code, "co_filename"),
                  attribute_text(*python, code, "co_qualname"), false};
        read.is_library = is_library(read.file);
        std::lock_guard lock(all.mutex);
        // The reference that PyFrame_GetCode gave stays with the map.
        if (!all.codes.emplace(code, std::move(read)).second) python->decrement(code);
      } else {
        python->decrement(code);
      }
      {
        std::lock_guard lock(all.mutex);
        if (!all.codes[code].is_library) key.emplace_back(code, line);
      }
      void* next = python->back(frame);
      if (is_owned) python->decrement(frame);
      frame = next;
      is_owned = true;
    }
    if (frame && is_owned) python->decrement(frame);
    if (!key.empty()) {
      std::lock_guard lock(all.mutex);
      auto [entry, is_new] = all.ids.try_emplace(key, static_cast<StackId>(all.stacks.size()));
      if (is_new) {
        auto& stack = all.stacks.emplace_back();
        for (const auto& [code, line] : key) {
          const Code& known = all.codes[code];
          stack.push_back(known.file + ":" + std::to_string(line) + " in " + known.function);
        }
      }
      id = entry->second;
    }
  }
  python->release(state);
  return id;
}

std::vector<std::string> frames(StackId stack) {
  Interned& all = interned();
  std::lock_guard lock(all.mutex);
  return stack < all.stacks.size() ? all.stacks[stack] : std::vector<std::string>{};
}

std::string thread_name() {
  char name[16] = "?";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::string(name) + " (" + std::to_string(gettid()) + ")";
}

}  // namespace emu::check
