// The greeting of two processes of Shardloom: both show who they are, and prove that they know the job's secret.
//
// Wire     each side sends "LOOM", a version of the greeting (u16, little endian), the length of its text (u16), 32
//          random bytes and the text; then HMAC-SHA-256 of both sides' bytes with the secret as the key. Neither
//          side acts on the other's text before it has checked the other's proof.
// Secret   SHARDLOOM_SECRET in the environment, the same for all processes of a job; without it the key is empty, which
//          keeps out strangers that do not speak this protocol, and no others. What follows is not encrypted.
// Errors   CommError: a peer that says something else, is silent until the deadline, or has another secret; the text
//          names its address.
#pragma once

#include <string>
#include <string_view>

#include "engine/comm/tcp/socket.h"

namespace loom::comm::tcp {

inline constexpr std::size_t kLongestGreeting = 4096;
inline constexpr std::string_view kGreetingMagic = "LOOM";

// SHARDLOOM_SECRET, or empty.
std::string secret_of_environment();

// The side that connects, and the side that listens: a proof of one is none of the other.
enum class Side : std::uint8_t { kConnects, kListens };

// The peer's text.
std::string greet(const Socket& socket, Side side, std::string_view secret, std::string_view text, Deadline deadline);

// HMAC-SHA-256, 32 bytes.
std::string proof_of(std::string_view secret, std::string_view text);
// Compared in constant time.
bool same_proof(std::string_view a, std::string_view b);

}  // namespace loom::comm::tcp
