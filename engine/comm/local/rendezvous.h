// Where the threads of one group meet on one lane, and what all groups of a job share. Private to engine/comm.
//
// Rendezvous counts arrivals in one word. Nobody arrives at meeting k + 1 before all have arrived at k, so meeting k is
// complete when the count reaches k * members. Giving up is a bit in the same word, set only while the meeting is
// incomplete, and freezes the count: either all members get through a meeting or none does.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/local/passages.h"
#include "engine/comm/process_group.h"

namespace loom::comm::inprocess {

class Job;

// What a member shows its peers for the time of one call.
struct Offer {
  Call call{};
  std::span<const GatherPart> parts{};       // all_gather
  std::span<const Outgoing> sends{};         // all_to_all
  std::span<const Incoming> receives{};      // all_to_all
  std::span<const ReducePart> reduced{};     // reduce_scatter_parts
  const void* input = nullptr;               // reductions, broadcast
  std::shared_ptr<SharedSegment> segment{};  // share: member 0's
  SplitChoice choice{};                      // split
};

class Rendezvous {
 public:
  Rendezvous(Job& job, const std::vector<int>& ranks, const std::string& label);

  // Shows `offer` and waits for all members. After it, offer() may be read until the call's last meet().
  // Throws CommError: a member that differs, fails, ends or does not come.
  void enter(int member, Offer offer);
  // What `peer` shows, as `member` may see it.
  const Offer& offer(int member, int peer) const;
  // Waits until all members have come here: what they offered is no longer needed, what they wrote is visible.
  // A failure elsewhere does not cut this short, because peers may still be reading.
  void meet(int member);

  // Lets go of what this member showed; after the call's last meet().
  void withdraw(int member);

  // Where two members hand over a message.
  Passages& passages() { return passages_; }
  // The collective in which `peer` waits for `member`, who has not come to it; or null.
  const Call* awaits(int peer, int member) const;

  // Wakes the sleepers to look at the job's state.
  void wake();

 private:
  // One member's own; `meetings` is read by peers to name who is missing.
  struct alignas(64) Member {
    std::atomic<std::uint64_t> meetings{0};
    std::uint64_t calls = 0;
    Offer offers[2];  // a peer may still compare the last call when this member shows the next
  };

  enum class Patience { kUntilFailure, kUntilDeadline };

  void arrive(int member);
  void await(int member, Patience patience);
  bool complete(std::uint64_t meeting) const;
  bool given_up() const;
  std::vector<Missing> missing(std::uint64_t meeting) const;
  bool misses_an_ended_rank(std::uint64_t meeting) const;
  // Under mutex_. False where the meeting became complete in the meantime.
  bool give_up(std::uint64_t meeting, std::string verdict);
  std::string reason_to_give_up(std::uint64_t meeting) const;
  [[noreturn]] void fail(int member, const std::string& verdict);
  void compare_calls(int member);
  // The first pair of an all_to_all that differs in its bytes. All members look at all pairs and find the same.
  std::optional<std::string> different_counts(int member) const;

  Job& job_;
  const std::vector<int>& ranks_;
  const std::string& label_;
  std::vector<Member> members_;
  alignas(64) std::atomic<std::uint64_t> arrivals_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string verdict_;  // guarded by mutex_
  Passages passages_;
};

// What all members of one group share. A rendezvous is made by the first member that calls on its lane.
class Members {
 public:
  Members(Job& job, std::vector<int> ranks, std::string name);
  ~Members();

  const std::vector<int>& ranks() const { return ranks_; }
  const std::string& name() const { return name_; }
  const std::string& label() const { return label_; }
  Rendezvous& on(Lane lane);
  // Wakes the sleepers of every lane. A lane made during it is not missed: who makes one looks at the job's state next.
  void wake();

 private:
  Job& job_;
  const std::vector<int> ranks_;
  const std::string name_;
  const std::string label_;
  std::mutex making_;
  std::array<std::atomic<Rendezvous*>, Lane::kCount> lanes_{};  // written under making_, owned
};

// What all ranks share. Its groups live as long as it does.
class Job {
 public:
  Job(int ranks, const CommOptions& options);

  int ranks() const { return static_cast<int>(entries_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // The group of `color` of split number `split`, made by whoever comes first; all its members have seen the choices.
  Members& members(std::size_t split, int color, std::vector<int> ranks, const std::string& name);
  // Where all ranks meet to make groups.
  Rendezvous& making_of_groups() { return making_.on(kHostLane); }
  const std::string& label_of_everyone() const { return making_.label(); }

  void note_entry(int rank, const Call& call);
  std::string last_entered(int rank) const;

  void fail(int rank, const std::string& reason) noexcept;
  bool failed() const { return failed_.load(); }
  int first_failed() const;
  std::string failure() const;

  void leave(int rank) noexcept;
  bool has_left(int rank) const { return entries_[static_cast<std::size_t>(rank)].left.load(); }

 private:
  struct alignas(64) Entry {
    mutable std::mutex mutex;
    Call last;         // guarded by mutex
    bool any = false;  // guarded by mutex
    std::atomic<bool> left{false};
  };

  void wake_everyone() noexcept;

  const std::chrono::milliseconds timeout_;
  std::vector<Entry> entries_;
  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  int first_failed_ = -1;  // guarded by failure_mutex_
  std::string reason_;     // guarded by failure_mutex_
  mutable std::mutex groups_mutex_;
  std::map<std::pair<std::size_t, int>, std::unique_ptr<Members>>
      groups_;  // by split and color; guarded by groups_mutex_
  Members making_;
};

}  // namespace loom::comm::inprocess
