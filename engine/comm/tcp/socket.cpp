#include "engine/comm/tcp/socket.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPause{50};          // between two attempts to connect
constexpr Milliseconds kOneAttempt{5'000};  // a host that does not answer at all
constexpr int kIdle_s = 15, kProbe_s = 5;   // of a connection without traffic
constexpr int kUnacknowledged_ms = 45'000;  // of one with traffic

struct Found {
  addrinfo* first = nullptr;
  ~Found() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

// The reason why nothing was found, or nothing.
std::optional<std::string> look_up(const std::string& host, std::uint16_t port, bool to_listen, Found& found) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = to_listen ? AI_PASSIVE : AI_ADDRCONFIG;
  const int status =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &wanted, &found.first);
  if (status == 0) return std::nullopt;
  return status == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(status);
}

int left(Deadline deadline) {
  const auto time = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(time, 0, 1'000'000'000));
}

// False at the deadline.
bool ready(int fd, short event, Deadline deadline) {
  pollfd polled{fd, event, 0};
  int found = 0;
  do {
    found = ::poll(&polled, 1, left(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

Socket new_socket(const addrinfo& info) {
  return std::make_unique<Descriptor>(
      ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol));
}

std::string numeric(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN]{};
  if (address.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
    return text;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    ::inet_ntop(AF_INET, six.s6_addr + 12, text, sizeof text);
    return text;
  }
  ::inet_ntop(AF_INET6, &six, text, sizeof text);
  return text;
}

std::uint16_t port_in(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

// A port of those that the system gives to connections may be given to the very connection that asks for it.
bool is_connected_to_itself(const Socket& socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
  return ::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
         ::getpeername(socket->get(), reinterpret_cast<sockaddr*>(&other), &other_bytes) == 0 &&
         port_in(own) == port_in(other) && numeric(own) == numeric(other);
}

// The reason why there is no connection, or nothing.
std::optional<std::string> try_to_connect(const addrinfo& info, Deadline deadline, Socket& connected) {
  Socket socket = new_socket(info);
  if (socket->get() < 0) return std::strerror(errno);
  if (::connect(socket->get(), info.ai_addr, info.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return std::strerror(errno);
    if (!ready(socket->get(), POLLOUT, std::min(deadline, Clock::now() + kOneAttempt))) return "no answer";
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return std::strerror(error);
  }
  if (is_connected_to_itself(socket)) return std::strerror(ECONNREFUSED);
  set_options(socket);
  connected = std::move(socket);
  return std::nullopt;
}

struct Interfaces {
  Interfaces() { ::getifaddrs(&first); }
  ~Interfaces() { ::freeifaddrs(first); }
  Interfaces(const Interfaces&) = delete;
  Interfaces& operator=(const Interfaces&) = delete;
  ifaddrs* first = nullptr;
};

bool has_address(const ifaddrs& interface) {
  return interface.ifa_addr != nullptr &&
         (interface.ifa_addr->sa_family == AF_INET || interface.ifa_addr->sa_family == AF_INET6);
}

std::string host_of(const ifaddrs& interface) {
  sockaddr_storage address{};
  std::memcpy(&address, interface.ifa_addr,
              interface.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return numeric(address);
}

}  // namespace

Socket listen_on(std::uint16_t port, const std::string& host) {
  Found found;
  if (const auto reason = look_up(host, port, true, found)) {
    raise<CommError>("no address of this machine for '{}': {}", shown_text(host), *reason);
  }
  int error = 0;
  // A socket of IPv6 takes connections of IPv4 too.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* info = found.first; info != nullptr; info = info->ai_next) {
      if (info->ai_family != family) continue;
      Socket socket = new_socket(*info);
      const int on = 1, off = 0;
      ::setsockopt(socket->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (family == AF_INET6) ::setsockopt(socket->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(socket->get(), info->ai_addr, info->ai_addrlen) == 0 && ::listen(socket->get(), 1024) == 0) {
        return socket;
      }
      error = errno;
      if (error == EADDRINUSE) return nullptr;
    }
  }
  raise<CommError>("port {} cannot be listened on: {}", port, std::strerror(error));
}

std::uint16_t port_of(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ::getsockname(listening->get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return port_in(address);
}

Socket accept_from(const Socket& listening, Milliseconds wait) {
  if (!is_readable(listening, Clock::now() + wait)) return nullptr;
  auto socket =
      std::make_unique<Descriptor>(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket->get() < 0) return nullptr;
  set_options(socket);
  return socket;
}

Socket connect_to(const Address& address, Deadline deadline) {
  const auto begun = Clock::now();
  std::string reason = "no answer";
  do {
    Found found;
    if (const auto unknown = look_up(address.host, address.port, false, found)) {
      reason = *unknown;
    } else {
      for (const addrinfo* info = found.first; info != nullptr; info = info->ai_next) {
        Socket connected;
        const auto failed = try_to_connect(*info, deadline, connected);
        if (!failed) return connected;
        reason = *failed;
      }
    }
    std::this_thread::sleep_for(
        std::min<Clock::duration>(kPause, std::max(deadline - Clock::now(), Clock::duration{})));
  } while (Clock::now() < deadline);
  raise<CommError>("no connection to {} within {} s: {}", to_text(address),
                   std::chrono::round<std::chrono::seconds>(Clock::now() - begun).count(), reason);
}

void set_options(const Socket& socket) {
  const int on = 1;
  const int fd = socket->get();
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int probes = 6;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdle_s, sizeof kIdle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbe_s, sizeof kProbe_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledged_ms, sizeof kUnacknowledged_ms);
}

bool is_readable(const Socket& socket, Deadline deadline) { return ready(socket->get(), POLLIN, deadline); }

bool is_local(const std::string& host) {
  Found found;
  if (look_up(host, 0, false, found)) return false;
  const Interfaces interfaces;
  for (const addrinfo* info = found.first; info != nullptr; info = info->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, info->ai_addr, info->ai_addrlen);
    const std::string wanted = numeric(address);
    if (is_loopback(wanted)) return true;
    for (const ifaddrs* own = interfaces.first; own != nullptr; own = own->ifa_next) {
      if (has_address(*own) && host_of(*own) == wanted) return true;
    }
  }
  return false;
}

std::string local_host_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return numeric(address);
}

std::string peer_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getpeername(socket->get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "a closed connection";
  return to_text({numeric(address), port_in(address)});
}

std::string host_of_interface(std::string_view names, std::string_view what) {
  const Interfaces interfaces;
  std::vector<std::string> present;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string_view name = names.substr(begin, end - begin);
    for (const ifaddrs* own = interfaces.first; own != nullptr; own = own->ifa_next) {
      if (has_address(*own) && name == own->ifa_name) return host_of(*own);
    }
    begin = end + 1;
  }
  for (const ifaddrs* own = interfaces.first; own != nullptr; own = own->ifa_next) {
    if (has_address(*own) && std::ranges::find(present, own->ifa_name) == present.end()) {
      present.emplace_back(own->ifa_name);
    }
  }
  std::string list;
  for (const std::string& name : present) list += (list.empty() ? "" : ", ") + name;
  config_error("{} is '{}', but this machine has no such interface with an address; it has {}", what, shown_text(names),
               list);
}

void send_all(const Socket& socket, const void* data, std::size_t bytes, Deadline deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket->get(), at, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!ready(socket->get(), POLLOUT, deadline)) raise<CommError>("{} takes no bytes in time", peer_of(socket));
    } else if (errno != EINTR) {
      raise<CommError>("{} cannot be sent to: {}", peer_of(socket), std::strerror(errno));
    }
  }
}

void receive_all(const Socket& socket, void* data, std::size_t bytes, Deadline deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = ::recv(socket->get(), at, bytes, 0);
    if (received > 0) {
      at += received;
      bytes -= static_cast<std::size_t>(received);
    } else if (received == 0) {
      raise<CommError>("{} has closed the connection", peer_of(socket));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!is_readable(socket, deadline)) raise<CommError>("{} sends no bytes in time", peer_of(socket));
    } else if (errno != EINTR) {
      raise<CommError>("{} cannot be received from: {}", peer_of(socket), std::strerror(errno));
    }
  }
}

}  // namespace loom::comm::tcp
