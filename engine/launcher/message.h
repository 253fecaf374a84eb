// Messages between agents and the coordinator, as JSON.
//
// Wire     a message has up to kLongestMessage bytes; before them stands their number, in kHeadBytes bytes.
// Errors   CommError from decode(): no JSON, an unknown message, a field that is missing or has another type or range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace loom::launcher {

inline constexpr std::size_t kLongestMessage = 65536;
inline constexpr std::size_t kHeadBytes = 4;

// --- From an agent

// The first message: who joins, and what it expects of the job.
struct Join {
  std::string tool{}, version{}, run_id{}, host{}, role{};
  int least = 1, most = 1;  // nodes
  int workers = 1;
  int node_rank = -1;
  bool has_coordinator = false;
};
// A worker has ended with an exit code, or by a signal.
struct Failure {
  int attempt = 0;
  int rank = 0, local_rank = 0;
  int exit_code = 0, signal = 0;
  std::int64_t unix_ms = 0;
  std::string host{};
  std::string last_lines{};  // of its stderr, if they were captured
};
// All workers of the node have ended with 0.
struct Succeeded {
  int attempt = 0;
};
// No worker of the node runs any more.
struct Stopped {};
// The node leaves in order: a signal has stopped it, or, with signal 0, it cannot go on for this reason.
struct Leaving {
  int signal = 0;
  std::string reason{};
};

// --- From the coordinator

// The agent does not belong to the job.
struct Refused {
  std::string reason{};
};
// All nodes have joined: start the workers.
struct Assigned {
  int attempt = 0;   // counts all starts
  int restarts = 0;  // of them, those that --max-restarts allowed
  int node = 0, nodes = 1;
  int first_rank = 0, world_size = 1;
  int first_role_rank = 0, role_world_size = 1;
};
// Stop the workers, and answer Stopped.
struct Stop {
  int signal = 0;
  std::string reason{};
};
// The job has ended: with 0, with 1 and a report, or by a signal.
struct End {
  int status = 0;
  int signal = 0;
  std::string report{};
};

// From both: a sign of life.
struct Heartbeat {};

using Message = std::variant<Join, Failure, Succeeded, Stopped, Leaving, Refused, Assigned, Stop, End, Heartbeat>;

// At most kLongestMessage bytes: long texts are cut.
std::string encode(const Message& message);
Message decode(std::string_view text);
// The message with its head, and the number in a head of kHeadBytes bytes.
std::string frame_of(const Message& message);
std::size_t length_in(std::string_view head);

}  // namespace loom::launcher
