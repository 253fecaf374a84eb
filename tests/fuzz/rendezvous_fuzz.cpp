// What strangers say to the store, and to a process that waits for a greeting. The first byte chooses.
#include <sys/socket.h>

#include "engine/comm/tcp/greeting.h"
#include "engine/comm/tcp/store.h"
#include "tests/fuzz/fuzz.h"

namespace loom {
namespace {

using comm::tcp::Socket;

constexpr auto kTime = std::chrono::seconds(4);

// A store answers or ends the connection, and then serves the next client.
void say_to_store(std::string_view words, const Socket& stranger, Socket served) {
  comm::tcp::StoreServer server(nullptr);
  server.adopt(std::move(served));
  ::send(stranger->get(), words.data(), words.size(), MSG_NOSIGNAL);
  ::shutdown(stranger->get(), SHUT_WR);
  char answers[4096];
  while (::recv(stranger->get(), answers, sizeof answers, 0) > 0) {
  }
}

// Whoever does not know the secret is refused by a CommError.
void greet(std::string_view words, const Socket& stranger, const Socket& waiting) {
  ::send(stranger->get(), words.data(), words.size(), MSG_NOSIGNAL);
  ::shutdown(stranger->get(), SHUT_WR);
  try {
    comm::tcp::greet(waiting, comm::tcp::Side::kListens, "secret", "text", std::chrono::steady_clock::now() + kTime);
  } catch (const CommError& error) {
    return fuzz::check_message(error.what());
  }
  fuzz::found("a stranger is taken for a rank", words);
}

}  // namespace
}  // namespace loom

LOOM_FUZZ_TARGET(rendezvous) {
  using namespace loom;
  if (size == 0) return 0;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  const Socket stranger = std::make_unique<Descriptor>(ends[0]);
  Socket served = std::make_unique<Descriptor>(ends[1]);
  const std::string_view words = fuzz::text_of(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    say_to_store(words, stranger, std::move(served));
  } else {
    greet(words, stranger, served);
  }
  return 0;
}
