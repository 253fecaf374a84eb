#include "engine/launcher/channel.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/socket.h>
#include <utility>

#include "engine/core/error.h"

namespace loom::launcher {
namespace {

constexpr std::size_t kMostUnread = std::size_t{4} << 20;
bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Channel::Channel(comm::tcp::Socket socket)
    : socket_(std::move(socket)), peer_(comm::tcp::peer_of(socket_)), heard_(Clock::now()) {}

void Channel::send(const Message& message) {
  if (!problem_.empty()) return;
  out_ += frame_of(message);
  if (out_.size() > kMostUnread) return fail("it does not read what it is sent");
  write();
}

void Channel::pump() {
  write();
  read();
}

std::optional<Message> Channel::next() {
  if (received_.empty()) return std::nullopt;
  std::optional<Message> message = std::move(received_.front());
  received_.pop_front();
  return message;
}

void Channel::write() {
  while (!out_.empty() && problem_.empty()) {
    const ssize_t sent = ::send(descriptor(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (!would_wait(errno)) fail(std::strerror(errno));
      return;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

void Channel::read() {
  std::array<char, 16384> buffer{};
  while (problem_.empty()) {
    const ssize_t got = ::recv(descriptor(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) {
      if (!would_wait(errno)) fail(std::strerror(errno));
      return;
    }
    if (got == 0) return fail("it closed the connection");
    heard_ = Clock::now();
    in_.append(buffer.data(), static_cast<std::size_t>(got));
    take_messages();
  }
}

void Channel::take_messages() {
  while (in_.size() >= kHeadBytes) {
    const std::size_t bytes = length_in(in_);
    if (bytes > kLongestMessage) return fail(fmt::format("it announced a message of {} bytes", bytes));
    if (in_.size() < kHeadBytes + bytes) return;
    try {
      received_.push_back(decode(std::string_view(in_).substr(kHeadBytes, bytes)));
    } catch (const CommError& error) {
      return fail(error.what());
    }
    in_.erase(0, kHeadBytes + bytes);
  }
}

void Channel::fail(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
  out_.clear();
}

}  // namespace loom::launcher
