// Passages: where two members of a group, threads of one process, hand over a message on one lane. Private to
// engine/comm.
//
// Model     A member shows what it sends and from whom it expects something; the receiver copies from the sender's
//           memory; each leaves when its message is over. A member is in one call of a lane at a time, so that two
//           members meet in the order of their calls.
// Mismatch  A member whose peer is at another call between the two, or waits for it in a collective, ends at once with
//           the difference.
// Threads   one a member.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/call.h"

namespace loom::comm::inprocess {

class Job;
class Rendezvous;

class Passages {
 public:
  Passages(Job& job, const Rendezvous& meetings, const std::vector<int>& ranks, const std::string& label);

  // What `member` does: members `to` and `from`, or ProcessGroup::kNobody; neither is itself.
  struct Passing {
    Call call;
    int to = ProcessGroup::kNobody;
    int from = ProcessGroup::kNobody;
    const void* sent = nullptr;
    void* received = nullptr;
  };
  // Returns when both messages are over. Throws CommError: a peer that differs, fails, ends or does not come.
  void pass(int member, Passing passing);

  // Wakes those who wait to look at the job's state.
  void wake();
  // The same; costs one check where nobody waits.
  void wake_waiting() {
    if (waiting_.load() > 0) wake();
  }

 private:
  enum class Message : std::uint8_t { kNone, kShown, kUnderWay };
  // A member's call, from its begin on: it stays to be compared with where the member gave up.
  struct State {
    Passing passing;
    Message sending = Message::kNone;
    Message receiving = Message::kNone;
    bool gave_up = false;
  };

  State& of(int member) { return states_[static_cast<std::size_t>(member)]; }
  const State& of(int member) const { return states_[static_cast<std::size_t>(member)]; }
  int rank_of(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  // Whether `member` still has a message to, or from, `peer`.
  bool concerns(int member, int peer) const;
  // The peers whose messages have not begun.
  std::vector<int> open_peers(int member) const;

  using Lock = std::unique_lock<std::mutex>;
  void receive(Lock& lock, int member);
  // Until `done`, for the job's deadline.
  void await(Lock& lock, int member, const std::function<bool()>& done);
  std::optional<std::string> reason_to_give_up(int member) const;
  std::string late(int member) const;
  [[noreturn]] void give_up(Lock& lock, int member, const std::string& verdict);

  Job& job_;
  const Rendezvous& meetings_;
  const std::vector<int>& ranks_;
  const std::string& label_;
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;  // by member; guarded by mutex_
};

}  // namespace loom::comm::inprocess
