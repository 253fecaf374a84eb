// Channel: a connection of an agent with the coordinator that never blocks. It queues messages in both directions, each
// the length in 4 bytes, little endian, and then message.h's text.
//
// Bounds   a message has up to kLongestMessage bytes; a peer that leaves more than 4 MiB unread is given up.
// Threads  one.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "engine/comm/tcp/socket.h"
#include "engine/launcher/message.h"

namespace loom::launcher {

class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Channel(comm::tcp::Socket socket);

  int descriptor() const { return socket_->get(); }
  bool wants_to_write() const { return !out_.empty(); }
  // Sends what the system takes at once; the rest follows with pump().
  void send(const Message& message);
  // Sends and receives what goes at once.
  void pump();
  // The next received message.
  std::optional<Message> next();
  // Empty while the connection is open; else why it is not. Messages that came before are still there.
  const std::string& problem() const { return problem_; }
  // When bytes came last; at first, when it was made.
  Clock::time_point heard() const { return heard_; }
  std::string peer() const { return peer_; }

 private:
  void write();
  void read();
  void take_messages();
  void fail(std::string problem);

  comm::tcp::Socket socket_;
  const std::string peer_;
  std::string in_, out_;
  std::deque<Message> received_;
  std::string problem_;
  Clock::time_point heard_;
};

}  // namespace loom::launcher
