#include "engine/launch/local_processes.h"

#include <cerrno>
#include <cstring>
#include <fmt/core.h>
#include <optional>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

#include "engine/comm/tcp/socket.h"
#include "engine/core/descriptor.h"
#include "engine/core/error.h"

namespace loom::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPause{20};
// How long the first process waits at its end for processes that start late.
constexpr Milliseconds kLastCall{10'000};

struct Address {
  sockaddr_un socket{};
  socklen_t bytes = 0;
};

Address address_of(const Start& start) {
  if (start.meeting.empty()) config_error("RANK and WORLD_SIZE are set, but MASTER_PORT is not; export it");
  const std::string name = fmt::format("shardloom.{}.{}", ::getuid(), start.meeting);
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.socket.sun_path) - 1);
  std::memcpy(address.socket.sun_path + 1, name.data(), length);  // the first byte, 0, makes it abstract
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

std::unique_ptr<Descriptor> new_socket() {
  auto socket = std::make_unique<Descriptor>(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket->get() < 0) raise<Error>("no socket for the processes of this host: {}", std::strerror(errno));
  return socket;
}

const sockaddr* generic(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.socket); }

std::unique_ptr<Descriptor> connection_to_first(const Start& start, Milliseconds deadline) {
  const Address address = address_of(start);
  const auto end = Clock::now() + deadline;
  while (Clock::now() < end) {
    auto socket = new_socket();
    if (::connect(socket->get(), generic(address), address.bytes) == 0) return socket;
    std::this_thread::sleep_for(kPause);
  }
  raise<Error>("rank {}: the process of rank 0 did not start within {} s; look at its output", start.process,
               deadline.count() / 1000);
}

}  // namespace

FirstProcess::FirstProcess(const Start& start) : others_(start.first_runs_all() ? start.processes - 1 : 0) {
  if (others_ == 0) return;
  const Address address = address_of(start);
  socket_ = new_socket();
  if (::bind(socket_->get(), generic(address), address.bytes) != 0 || ::listen(socket_->get(), others_) != 0) {
    config_error("another run of this user has MASTER_PORT {} ({}); export another one", start.meeting,
                 std::strerror(errno));
  }
}

FirstProcess::~FirstProcess() {
  const auto end = Clock::now() + kLastCall;
  for (int told = 0; told < others_ && Clock::now() < end;) {
    if (!comm::tcp::is_readable(socket_, Clock::now() + kPause)) continue;
    const Descriptor other(::accept4(socket_->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (other.get() < 0) continue;
    ::send(other.get(), &status_, 1, MSG_NOSIGNAL);
    ++told;
  }
}

void wait_for_first(const Start& start, Milliseconds deadline) {
  const auto first = connection_to_first(start, deadline);
  char status = 1;
  ssize_t bytes = 0;
  do {
    bytes = ::recv(first->get(), &status, 1, 0);
  } while (bytes < 0 && errno == EINTR);
  if (bytes == 1 && status == 0) return;
  raise<Error>("rank {}: the process of rank 0, which runs all ranks, {}; look at its output", start.process,
               bytes == 1 ? "failed" : "ended");
}

}  // namespace loom::launch
