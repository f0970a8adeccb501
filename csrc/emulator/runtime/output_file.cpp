// SPDX-License-Identifier: Apache-2.0
#include "runtime/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace emu {
namespace {

// `path` with %p replaced by this process's id.
std::string expanded(std::string path) {
  const std::string id = std::to_string(getpid());
  for (size_t at = path.find("%p"); at != std::string::npos; at = path.find("%p", at)) {
    path.replace(at, 2, id);
  }
  return path;
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// 0, or the error number of what failed.
int written(const std::string& path, const std::function<void(std::FILE*)>& write) {
  std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "w"));
  if (!file) return errno;
  write(file.get());
  // A full disk may show only here.
  if (std::fflush(file.get()) != 0 || std::ferror(file.get())) return errno ? errno : EIO;
  return std::fclose(file.release()) == 0 ? 0 : errno;
}

// A pipe or /dev/stderr takes the text as it comes; a file beside it would take its place.
bool is_replaceable(const std::string& path) {
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  return kind == std::filesystem::file_type::regular ||
         kind == std::filesystem::file_type::not_found;
}

}  // namespace

void write_output_file(const char* variable, const std::string& path,
                       const std::function<void(std::FILE*)>& write) {
  const std::string final_path = expanded(path);
  const bool is_replaced = is_replaceable(final_path);
  const std::string target =
      is_replaced ? final_path + "." + std::to_string(getpid()) + ".part" : final_path;
  int error = written(target, write);
  if (!error && is_replaced && std::rename(target.c_str(), final_path.c_str()) != 0) error = errno;
  if (!error) return;
  if (is_replaced) ::unlink(target.c_str());
  std::fprintf(stderr, "[ascend-emulator] cannot write %s=%s: %s\n", variable, final_path.c_str(),
               std::strerror(error));
}

std::string why_not_writable(const std::string& path) {
  const std::filesystem::path file = expanded(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return "it is a folder";
  if (!is_replaceable(file)) return "";
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return "";
  return folder + ": " + std::strerror(errno);
}

}  // namespace emu
