// Rendezvous: what the coordinator decides. It has no clock and no connections: it gets events with their time, and
// leaves the messages to send.
//
// Gathering  until the most nodes have joined, or the fewest and Times::last_call has passed since the last one came;
//            not longer than Times::join. Then every agent is Assigned its ranks.
// Running    until all workers have ended with 0, which ends the job.
// Stopping   all agents stop their workers and confirm it; who does not in time is lost. Then nodes gather again, or
//            the job ends.
//
// Event      while Running            leads to
// Failure    a worker fails           Stopping; then Gathering while restarts are left, else the end with 1
// Loss       an agent is lost         the same
// Growth     an agent joins           Stopping, Gathering; takes no restart
// Leaving    an agent leaves          Stopping, the end: 128 + signal for all
// Order      of nodes: by node_rank; where the ranks are not given, the node of the coordinator, then in the order of
//            joining. Ranks are contiguous within a node.
// Refused    an agent of another tool, version, job or size, a node_rank that is taken or too large, an agent too many.
// Threads    one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/launcher/message.h"
#include "engine/launcher/options.h"

namespace loom::launcher {

class Rendezvous {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = int;  // of an agent's connection

  Rendezvous(const Options& options, Time now);

  void joined(Id agent, const Join& join, Time now);
  void received(Id agent, const Message& message, Time now);
  void lost(Id agent, const std::string& why, Time now);
  // Call it often: deadlines are noticed here.
  void tick(Time now);

  // What is to be sent since the last call, in order.
  std::vector<std::pair<Id, Message>> take_messages();
  // What has happened since the last call. A routine event is for a log; the others are for the user.
  struct Note {
    std::string text;
    bool routine = false;
  };
  std::vector<Note> take_notes();
  // Starts so far; a new one needs an empty store.
  int attempts() const { return attempts_; }
  // Whether the job has ended, or ends when all workers have stopped.
  bool ending() const { return phase_ == Phase::kEnded || (phase_ == Phase::kStopping && ends_); }

 private:
  enum class Phase : std::uint8_t { kGathering, kRunning, kStopping, kEnded };
  struct Member {
    Join join;
    int order = 0;
    bool running = false;  // has workers that have not stopped
    bool done = false;     // they all have ended with 0
  };

  std::string refusal(const Join& join) const;
  std::string refusal_of_node(const Join& join) const;
  void failed(const Failure& failure, Time now);
  void left(Id agent, const Leaving& leaving, Time now);
  void start();
  void stop(Id except, int signal, const std::string& reason, Time now);
  void restart_or_end(const std::string& report, const std::string& reason, Time now);
  void settle(Time now);
  void gather(Time now);
  void end(const End& end);
  std::string missing() const;
  std::vector<Id> in_order() const;

  const Options options_;
  Phase phase_ = Phase::kGathering;
  std::map<Id, Member> members_;
  int joined_ever_ = 0;
  int attempts_ = 0;
  int restarts_ = 0;
  bool takes_restart_ = false;     // of the stop that is under way
  bool ends_ = false;              // after the stop that is under way
  End end_;                        // then
  std::vector<Failure> failures_;  // of this attempt
  std::vector<std::string> losses_;
  Time gathered_since_, last_joined_, stop_deadline_;
  std::vector<std::pair<Id, Message>> messages_;
  std::vector<Note> notes_;
};

}  // namespace loom::launcher
