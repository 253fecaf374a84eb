#include "engine/launcher/first_bytes.h"

#include <array>
#include <cerrno>
#include <string_view>
#include <sys/socket.h>

#include "engine/comm/tcp/greeting.h"

namespace loom::launcher {

Caller caller_of(const comm::tcp::Socket& socket) {
  constexpr std::string_view kMagic = comm::tcp::kGreetingMagic;
  std::array<char, kMagic.size()> first{};
  const ssize_t got = ::recv(socket->get(), first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return Caller::kGone;
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Caller::kUnknown : Caller::kGone;
  const std::string_view seen(first.data(), static_cast<std::size_t>(got));
  if (!kMagic.starts_with(seen)) return Caller::kStoreClient;
  return seen == kMagic ? Caller::kAgent : Caller::kUnknown;
}

}  // namespace loom::launcher
