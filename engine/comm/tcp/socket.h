// Sockets with deadlines: what the TCP transport, the store and the launchers connect with.
//
// Errors   CommError, with the address and the system's words.
// Threads  a Socket belongs to one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/descriptor.h"

namespace loom::comm::tcp {

using Deadline = std::chrono::steady_clock::time_point;

// A host and a port: "10.77.0.1:29500", "[fe80::1]:29500", "localhost:29500".
struct Address {
  std::string host{};
  std::uint16_t port = 0;
};
std::string to_text(const Address& address);
// ConfigError: `what` names the flag or variable that has the text. `port` is for a text without one; 0: it needs one.
Address parse_address(std::string_view text, std::string_view what, std::uint16_t port = 0);

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
