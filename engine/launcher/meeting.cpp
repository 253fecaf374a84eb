#include "engine/launcher/meeting.h"

#include <array>
#include <string>

#include "engine/comm/tcp/greeting.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::launcher {
namespace {

using comm::tcp::Side;

constexpr const char* kAgent = "launcher agent";
constexpr const char* kCoordinator = "launcher coordinator";

void check_peer(const comm::tcp::Socket& socket, const std::string& text, const char* expected) {
  if (text == expected) return;
  raise<CommError>("{} is {}, expected a {}", comm::tcp::peer_of(socket), shown_text(text), expected);
}

}  // namespace

void introduce(const comm::tcp::Socket& socket, const Join& join, comm::tcp::Deadline deadline) {
  const std::string secret = comm::tcp::secret_of_environment();
  check_peer(socket, comm::tcp::greet(socket, Side::kConnects, secret, kAgent, deadline), kCoordinator);
  const std::string frame = frame_of(join);
  comm::tcp::send_all(socket, frame.data(), frame.size(), deadline);
}

Join meet(const comm::tcp::Socket& socket, comm::tcp::Deadline deadline) {
  const std::string secret = comm::tcp::secret_of_environment();
  check_peer(socket, comm::tcp::greet(socket, Side::kListens, secret, kCoordinator, deadline), kAgent);
  std::array<char, kHeadBytes> head{};
  comm::tcp::receive_all(socket, head.data(), head.size(), deadline);
  const std::size_t bytes = length_in({head.data(), head.size()});
  if (bytes > kLongestMessage) raise<CommError>("{} announced {} bytes", comm::tcp::peer_of(socket), bytes);
  std::string text(bytes, '\0');
  comm::tcp::receive_all(socket, text.data(), bytes, deadline);
  const Message message = decode(text);
  if (const auto* join = std::get_if<Join>(&message)) return *join;
  raise<CommError>("{} did not begin by joining", comm::tcp::peer_of(socket));
}

}  // namespace loom::launcher
