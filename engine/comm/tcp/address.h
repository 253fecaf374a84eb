// Addresses: where a process listens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace loom::comm::tcp {

// A host and a port: "10.77.0.1:29500", "[fe80::1]:29500", "localhost:29500".
struct Address {
  std::string host{};
  std::uint16_t port = 0;
};
std::string to_text(const Address& address);
// ConfigError: `what` names the flag or variable that has the text. `port` is for a text without one; 0: it needs one.
Address parse_address(std::string_view text, std::string_view what, std::uint16_t port = 0);
// "localhost", "127.0.0.1" and the like, by its text alone.
bool is_loopback(std::string_view host);

}  // namespace loom::comm::tcp
