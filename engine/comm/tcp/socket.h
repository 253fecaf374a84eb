// Sockets with deadlines: what the TCP transport, the store and the launchers connect with.
//
// Errors   CommError, with the address and the system's words.
// Threads  a Socket belongs to one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/comm/tcp/address.h"
#include "engine/core/descriptor.h"

namespace loom::comm::tcp {

using Deadline = std::chrono::steady_clock::time_point;

using Socket = std::unique_ptr<Descriptor>;

// A socket that listens on `port` of all interfaces (0: a free one), or of `host` alone. Null if the port is in use.
Socket listen_on(std::uint16_t port, const std::string& host = {});
std::uint16_t port_of(const Socket& listening);
// The next connection, or null after `wait`.
Socket accept_from(const Socket& listening, std::chrono::milliseconds wait);
// A connection, tried again until the deadline.
Socket connect_to(const Address& address, Deadline deadline);
// Small messages at once; a peer whose machine has gone is noticed within a minute.
void set_options(const Socket& socket);

// Whether bytes are there, or the peer has ended, before the deadline.
bool is_readable(const Socket& socket, Deadline deadline);
// Whether `host` is this machine.
bool is_local(const std::string& host);
// The numeric address of this end of a connection, and of the other one.
std::string local_host_of(const Socket& socket);
std::string peer_of(const Socket& socket);
// The address of the first interface of `names` (as GLOO_SOCKET_IFNAME: "eth0,eth1"); ConfigError naming those that
// exist if there is none.
std::string host_of_interface(std::string_view names, std::string_view what);

// All bytes, or CommError: the peer has closed, the deadline is over.
void send_all(const Socket& socket, const void* data, std::size_t bytes, Deadline deadline);
void receive_all(const Socket& socket, void* data, std::size_t bytes, Deadline deadline);

}  // namespace loom::comm::tcp
