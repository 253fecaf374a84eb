#include "engine/comm/tcp/greeting.h"

#include <array>
#include <cstdlib>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "engine/core/error.h"

namespace loom::comm::tcp {
namespace {

constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kNonceBytes = 32, kProofBytes = 32;
constexpr std::size_t kHeadBytes = kGreetingMagic.size() + 4;

void append(std::string& bytes, std::size_t number) {
  bytes += static_cast<char>(number & 0xff);
  bytes += static_cast<char>(number >> 8 & 0xff);
}

std::size_t number_at(const std::string& bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])); };
  return byte(at) | byte(at + 1) << 8;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) {
    raise<CommError>("this system gives no random bytes for a greeting");
  }
  return bytes;
}

std::string received(const Socket& socket, std::size_t count, Deadline deadline) {
  std::string bytes(count, '\0');
  receive_all(socket, bytes.data(), count, deadline);
  return bytes;
}

std::string proof_of_side(Side side, std::string_view secret, const std::string& connecting,
                          const std::string& listening) {
  return proof_of(secret, (side == Side::kConnects ? "connects:" : "listens:") + connecting + listening);
}

// All that the peer says of itself.
std::string peers_words(const Socket& socket, Deadline deadline) {
  std::string head = received(socket, kHeadBytes, deadline);
  if (!head.starts_with(kGreetingMagic)) {
    raise<CommError>("{} does not speak Shardloom's protocol; it was disconnected", peer_of(socket));
  }
  if (const std::size_t version = number_at(head, kGreetingMagic.size()); version != kVersion) {
    raise<CommError>("{} speaks version {} of Shardloom's protocol, this process version {}; install one version",
                     peer_of(socket), version, kVersion);
  }
  const std::size_t bytes = number_at(head, kGreetingMagic.size() + 2);
  if (bytes > kLongestGreeting) {
    raise<CommError>("{} greets with {} bytes, above the {} allowed; it was disconnected", peer_of(socket), bytes,
                     kLongestGreeting);
  }
  return head + received(socket, kNonceBytes + bytes, deadline);
}

}  // namespace

std::string secret_of_environment() {
  const char* const secret = std::getenv("SHARDLOOM_SECRET");
  return secret == nullptr ? "" : secret;
}

std::string greet(const Socket& socket, Side side, std::string_view secret, std::string_view text, Deadline deadline) {
  require(text.size() <= kLongestGreeting, "a greeting of {} bytes, at most {}", text.size(), kLongestGreeting);
  std::string mine(kGreetingMagic);
  append(mine, kVersion);
  append(mine, text.size());
  mine += random_bytes(kNonceBytes);
  mine += text;
  send_all(socket, mine.data(), mine.size(), deadline);
  const std::string theirs = peers_words(socket, deadline);
  const bool connects = side == Side::kConnects;
  const std::string &connecting = connects ? mine : theirs, &listening = connects ? theirs : mine;
  const std::string proof = proof_of_side(side, secret, connecting, listening);
  send_all(socket, proof.data(), proof.size(), deadline);
  const Side other = connects ? Side::kListens : Side::kConnects;
  if (!same_proof(received(socket, kProofBytes, deadline), proof_of_side(other, secret, connecting, listening))) {
    raise<CommError>("{} does not know this job's secret; give all processes the same SHARDLOOM_SECRET",
                     peer_of(socket));
  }
  return theirs.substr(kHeadBytes + kNonceBytes);
}

std::string proof_of(std::string_view secret, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(text.data());
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), data, text.size(), digest.data(), &bytes) ==
      nullptr) {
    raise<CommError>("OpenSSL computes no HMAC-SHA-256");
  }
  return {reinterpret_cast<const char*>(digest.data()), bytes};
}

bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace loom::comm::tcp
