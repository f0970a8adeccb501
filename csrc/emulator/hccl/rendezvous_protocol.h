// SPDX-License-Identifier: Apache-2.0
// What ranks and the rendezvous server say to each other: one message a packet.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "hccl/file_descriptor.h"
#include "hccl/rendezvous.h"

namespace emu::hccl {

struct Join {
  char key[kKeyBytes];
  uint32_t ranks;
  uint32_t rank;
  int32_t process;
  int32_t device;
};

struct Reply {
  enum Kind : uint32_t { kWaiting, kReady, kRefused };
  Kind kind;
  uint64_t present;  // ranks that are there, a bit for each
  char why[512];     // kRefused
};

// The length is that of the whole structure for a path; an abstract address begins with a zero.
socklen_t abstract_address(const std::string& name, sockaddr_un* address);

// Whether all of it was sent. `file` goes with it; -1 for none.
bool send_packet(int socket, const void* packet, size_t bytes, int file = -1);
// Bytes received, 0 at the end. A file that came with it is put into `file`.
ssize_t receive_packet(int socket, void* packet, size_t bytes, FileDescriptor* file = nullptr);

// Binds and listens, and lets a thread serve `address` until the process ends. False (errno set) if
// somebody does already or it cannot be.
bool start_server(const std::string& address);

}  // namespace emu::hccl
