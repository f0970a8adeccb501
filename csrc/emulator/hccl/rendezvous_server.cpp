// SPDX-License-Identifier: Apache-2.0
// The server's side of a rendezvous: one thread for each address, asleep but for joins.
#include <poll.h>
#include <pthread.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "hccl/rendezvous_protocol.h"

namespace emu::hccl {
namespace {

class Server {
 public:
  explicit Server(FileDescriptor listener) : listener_(std::move(listener)) {}

  void run() {
    pthread_setname_np(pthread_self(), "hccl_rendezvous");
    for (;;) {
      std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
      for (const auto& [number, connection] : connections_) watched.push_back({number, POLLIN, 0});
      if (poll(watched.data(), watched.size(), -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      for (size_t i = 1; i < watched.size(); ++i) {
        if (watched[i].revents) read(watched[i].fd);
      }
      if (watched[0].revents) accept();
    }
  }

 private:
  struct Connection {
    FileDescriptor socket;
    Join join{};  // ranks is 0 until it has come
  };
  using Group = std::map<uint32_t, Connection*>;  // by rank

  void accept() {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    int number = socket.get();
    connections_[number].socket = std::move(socket);
  }

  void read(int number) {
    auto found = connections_.find(number);
    if (found == connections_.end()) return;  // it went with its group
    Connection& connection = found->second;
    Join join{};
    if (receive_packet(number, &join, sizeof join) != static_cast<ssize_t>(sizeof join) ||
        connection.join.ranks) {
      forget(connection);  // it gave up, or ended
      return;
    }
    join.key[kKeyBytes - 1] = '\0';
    connection.join = join;
    enter(connection);
  }

  void enter(Connection& connection) {
    Group& group = groups_[connection.join.key];
    std::string why = contradiction(group, connection.join);
    if (!why.empty()) {
      refuse(connection, why);
      for (auto& [rank, other] : Group(group)) refuse(*other, why);
      return;
    }
    group[connection.join.rank] = &connection;
    if (group.size() == connection.join.ranks) return complete(group);
    Reply reply{Reply::kWaiting, 0, {}};
    for (const auto& [rank, member] : group) reply.present |= uint64_t{1} << rank;
    for (const auto& [rank, member] : group) {
      send_packet(member->socket.get(), &reply, sizeof reply);
    }
  }

  // Why `join` cannot be one of `group`; empty if it can.
  static std::string contradiction(const Group& group, const Join& join) {
    std::string self =
        "rank " + std::to_string(join.rank) + " (process " + std::to_string(join.process) + ")";
    for (const auto& [rank, member] : group) {
      const Join& other = member->join;
      std::string them =
          "rank " + std::to_string(rank) + " (process " + std::to_string(other.process) + ")";
      if (other.ranks != join.ranks) {
        return self + " says that there are " + std::to_string(join.ranks) + " ranks, and " + them +
               " says " + std::to_string(other.ranks);
      }
      if (rank == join.rank) {
        return "there are two of rank " + std::to_string(rank) + ", in the processes " +
               std::to_string(other.process) + " and " + std::to_string(join.process);
      }
      if (other.device == join.device) {
        return self + " and " + them + " both use device " + std::to_string(join.device) +
               " (its number on the machine): each rank of a communicator needs one of its own";
      }
    }
    return "";
  }

  void complete(Group& group) {
    auto segment = Segment::create(static_cast<uint32_t>(group.size()));
    if (!segment) {
      std::string why = std::string("no shared memory: ") + std::strerror(errno);
      for (auto& [rank, member] : Group(group)) refuse(*member, why);
      return;
    }
    for (const auto& [rank, member] : group) {
      segment->cell(rank).process = member->join.process;
      segment->cell(rank).device = member->join.device;
    }
    Reply reply{Reply::kReady, 0, {}};
    for (auto& [rank, member] : Group(group)) {
      send_packet(member->socket.get(), &reply, sizeof reply, segment->file());
      forget(*member);
    }
  }

  void refuse(Connection& connection, const std::string& why) {
    Reply reply{Reply::kRefused, 0, {}};
    std::strncpy(reply.why, why.c_str(), sizeof reply.why - 1);
    send_packet(connection.socket.get(), &reply, sizeof reply);
    forget(connection);
  }

  void forget(Connection& connection) {
    auto group = groups_.find(connection.join.key);
    if (group != groups_.end()) {
      std::erase_if(group->second, [&](const auto& each) { return each.second == &connection; });
      if (group->second.empty()) groups_.erase(group);
    }
    connections_.erase(connection.socket.get());
  }

  FileDescriptor listener_;
  std::map<int, Connection> connections_;  // by socket
  std::map<std::string, Group> groups_;
};

}  // namespace

bool start_server(const std::string& address) {
  FileDescriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listener) return false;
  sockaddr_un name;
  socklen_t length = abstract_address(address, &name);
  constexpr int kBacklog = 128;
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&name), length) ||
      listen(listener.get(), kBacklog)) {
    return false;
  }
  // Serves until the process ends: communicators can be split from others at any time.
  std::thread([server = std::make_shared<Server>(std::move(listener))] { server->run(); }).detach();
  return true;
}

}  // namespace emu::hccl
