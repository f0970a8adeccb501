// SPDX-License-Identifier: Apache-2.0
// The ranks' side of a rendezvous.
#include "hccl/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "hccl/rendezvous_protocol.h"

namespace emu::hccl {
namespace {

using Clock = std::chrono::steady_clock;

std::string missing(uint64_t present, uint32_t ranks) {
  std::string text;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (!(present >> rank & 1)) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

FileDescriptor try_to_connect(const std::string& address) {
  FileDescriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name;
  socklen_t length = abstract_address(address, &name);
  if (connection && connect(connection.get(), reinterpret_cast<sockaddr*>(&name), length)) {
    int error = errno;
    connection.reset();
    errno = error;
  }
  return connection;
}

// Negative if it cannot be reached (errno set). Whoever serves it may not listen yet.
FileDescriptor connect_to(const std::string& address) {
  constexpr int kAttempts = 50;
  constexpr auto kPause = std::chrono::milliseconds(20);
  for (int attempt = 1;; ++attempt) {
    FileDescriptor connection = try_to_connect(address);
    if (connection || errno != ECONNREFUSED || attempt == kAttempts) return connection;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

std::string local_address() {
  static std::mutex mutex;
  static auto* address = new std::string;
  std::lock_guard lock(mutex);
  if (address->empty()) {
    std::random_device random;
    std::string name = "emulated-hccl-" + std::to_string(getpid()) + "-" +
                       std::to_string((uint64_t{random()} << 32) | random());
    if (start_server(name)) *address = name;
  }
  return *address;
}

std::string well_known_address(const std::string& text) {
  return "emulated-hccl-table-" + std::to_string(getuid()) + "-" +
         std::to_string(std::hash<std::string>{}(text));
}

void serve_if_nobody_does(const std::string& address) { start_server(address); }

HcclResult meet(const Party& party, std::chrono::seconds timeout, std::shared_ptr<Segment>* segment,
                std::string* why) {
  const auto until = Clock::now() + timeout;
  FileDescriptor connection = connect_to(party.address);
  if (!connection) {
    *why = "the process that the root info came from is gone, or is on another machine (" +
           std::string(std::strerror(errno)) + ")";
    return HCCL_E_REMOTE;
  }
  Join join{};
  std::strncpy(join.key, party.key.c_str(), kKeyBytes - 1);
  join.ranks = party.ranks;
  join.rank = party.rank;
  join.process = getpid();
  join.device = party.device;
  uint64_t present = uint64_t{1} << party.rank;
  bool is_alive = send_packet(connection.get(), &join, sizeof join);
  while (is_alive) {
    pollfd watched{connection.get(), POLLIN, 0};
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    int ready = left.count() > 0 ? poll(&watched, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      *why = "EI0006: " + std::to_string(timeout.count()) +
             " s have passed (HCCL_CONNECT_TIMEOUT) and of the " + std::to_string(party.ranks) +
             " ranks these have not come: " + missing(present, party.ranks);
      return HCCL_E_TIMEOUT;
    }
    Reply reply{};
    FileDescriptor file;
    if (receive_packet(connection.get(), &reply, sizeof reply, &file) <= 0) break;
    switch (reply.kind) {
      case Reply::kWaiting:
        present = reply.present;
        break;
      case Reply::kRefused:
        reply.why[sizeof reply.why - 1] = '\0';
        *why = reply.why;
        return HCCL_E_PARA;
      case Reply::kReady:
        *segment = Segment::open(std::move(file), party.ranks);
        if (*segment) return HCCL_SUCCESS;
        *why = std::string("the memory shared with the other ranks: ") + std::strerror(errno);
        return HCCL_E_MEMORY;
    }
  }
  *why = "the process that the root info came from ended before all ranks had come";
  return HCCL_E_REMOTE;
}

}  // namespace emu::hccl
