#include "engine/comm/local/rendezvous.h"

#include <fmt/core.h>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace loom::comm::inprocess {
namespace {

constexpr std::uint64_t kGivenUp = std::uint64_t{1} << 63;
constexpr int kSpins = 400;  // about 10 us; longer than a wake-up would pay only on idle cores

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Rendezvous::Rendezvous(Job& job, const std::vector<int>& ranks, const std::string& label)
    : job_(job), ranks_(ranks), label_(label), members_(ranks.size()), passages_(job, *this, ranks, label) {}

void Rendezvous::enter(int member, Offer offer) {
  Member& me = members_[static_cast<std::size_t>(member)];
  const int rank = ranks_[static_cast<std::size_t>(member)];
  ++me.calls;
  Offer& shown = me.offers[me.calls % 2];
  shown = std::move(offer);
  job_.note_entry(rank, shown.call);
  if (job_.failed()) fail(member, job_.failure());
  arrive(member);
  await(member, Patience::kUntilFailure);
  compare_calls(member);
}

const Offer& Rendezvous::offer(int member, int peer) const {
  const std::uint64_t call = members_[static_cast<std::size_t>(member)].calls;  // the peer may be one ahead by now
  return members_[static_cast<std::size_t>(peer)].offers[call % 2];
}

void Rendezvous::withdraw(int member) {
  Member& me = members_[static_cast<std::size_t>(member)];
  me.offers[me.calls % 2] = {};
}

void Rendezvous::meet(int member) {
  arrive(member);
  await(member, Patience::kUntilDeadline);
}

const Call* Rendezvous::awaits(int peer, int member) const {
  const std::uint64_t met = members_[static_cast<std::size_t>(member)].meetings.load();
  if (members_[static_cast<std::size_t>(peer)].meetings.load() <= met) return nullptr;
  return &offer(peer, peer).call;
}

void Rendezvous::wake() {
  {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  passages_.wake();
}

void Rendezvous::arrive(int member) {
  members_[static_cast<std::size_t>(member)].meetings.fetch_add(1);
  std::uint64_t seen = arrivals_.load();
  do {
    if ((seen & kGivenUp) != 0) return;  // await() finds the verdict
  } while (!arrivals_.compare_exchange_weak(seen, seen + 1));
  if ((seen + 1) % members_.size() == 0 && sleepers_.load() > 0) wake();
  passages_.wake_waiting();
}

bool Rendezvous::complete(std::uint64_t meeting) const {
  return (arrivals_.load() & ~kGivenUp) >= meeting * members_.size();
}

bool Rendezvous::given_up() const { return (arrivals_.load() & kGivenUp) != 0; }

void Rendezvous::await(int member, Patience patience) {
  const std::uint64_t meeting = members_[static_cast<std::size_t>(member)].meetings.load();
  for (int i = 0; i < kSpins && !given_up(); ++i) {
    if (complete(meeting)) return;
    pause();
  }
  const auto deadline = std::chrono::steady_clock::now() + job_.timeout();
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  changed_.wait_until(lock, deadline, [&] {
    return complete(meeting) || given_up() ||
           (patience == Patience::kUntilFailure && (job_.failed() || misses_an_ended_rank(meeting)));
  });
  sleepers_.fetch_sub(1);
  if (complete(meeting)) return;
  if (!given_up() && !give_up(meeting, reason_to_give_up(meeting))) return;
  const std::string verdict = verdict_;
  lock.unlock();
  fail(member, verdict);
}

bool Rendezvous::give_up(std::uint64_t meeting, std::string verdict) {
  std::uint64_t seen = arrivals_.load();
  do {
    if ((seen & ~kGivenUp) >= meeting * members_.size()) return false;
  } while (!arrivals_.compare_exchange_weak(seen, seen | kGivenUp));
  verdict_ = std::move(verdict);
  changed_.notify_all();
  return true;
}

std::string Rendezvous::reason_to_give_up(std::uint64_t meeting) const {
  if (job_.failed()) return job_.failure();
  const std::vector<Missing> absent = missing(meeting);
  for (const Missing& peer : absent) {
    if (job_.has_left(peer.rank)) return has_ended(peer);
  }
  return did_not_come(absent, job_.timeout());
}

std::vector<Missing> Rendezvous::missing(std::uint64_t meeting) const {
  std::vector<Missing> absent;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].meetings.load() < meeting) absent.push_back({ranks_[i], job_.last_entered(ranks_[i])});
  }
  return absent;
}

bool Rendezvous::misses_an_ended_rank(std::uint64_t meeting) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].meetings.load() < meeting && job_.has_left(ranks_[i])) return true;
  }
  return false;
}

void Rendezvous::fail(int member, const std::string& verdict) {
  const int rank = ranks_[static_cast<std::size_t>(member)];
  const std::string text = where(rank, offer(member, member).call, label_) + verdict;
  job_.fail(rank, text);
  throw CommError(text);
}

void Rendezvous::compare_calls(int member) {
  const int rank = ranks_[static_cast<std::size_t>(member)];
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::optional<std::string> differs =
        difference(rank, offer(member, member).call, ranks_[i], offer(member, static_cast<int>(i)).call);
    if (differs) fail(member, *differs);
  }
  if (offer(member, member).call.kind != CallKind::kAllToAll) return;
  if (const auto differs = different_counts(member)) {
    meet(member);  // the peers read this member's counts, and find the same
    fail(member, *differs);
  }
}

std::optional<std::string> Rendezvous::different_counts(int member) const {
  for (std::size_t from = 0; from < members_.size(); ++from) {
    const std::span<const Outgoing> sends = offer(member, static_cast<int>(from)).sends;
    for (std::size_t to = 0; to < members_.size(); ++to) {
      const std::uint64_t sent = sends[to].bytes;
      const std::uint64_t expected = offer(member, static_cast<int>(to)).receives[from].bytes;
      if (sent != expected) return count_difference(ranks_[from], sent, ranks_[to], expected);
    }
  }
  return std::nullopt;
}

Members::Members(Job& job, std::vector<int> ranks, std::string name)
    : job_(job), ranks_(std::move(ranks)), name_(std::move(name)), label_(group_label(name_, ranks_)) {}

Members::~Members() {
  for (const std::atomic<Rendezvous*>& lane : lanes_) delete lane.load();
}

Rendezvous& Members::on(Lane lane) {
  std::atomic<Rendezvous*>& place = lanes_[static_cast<std::size_t>(lane.id())];
  if (Rendezvous* found = place.load()) return *found;
  const std::lock_guard lock(making_);
  if (place.load() == nullptr) place.store(new Rendezvous(job_, ranks_, label_));
  return *place.load();
}

void Members::wake() {
  for (const std::atomic<Rendezvous*>& lane : lanes_) {
    if (Rendezvous* found = lane.load()) found->wake();
  }
}

Job::Job(int ranks, const CommOptions& options)
    : timeout_(options.timeout),
      entries_(static_cast<std::size_t>(ranks)),
      making_(*this, first_ranks(ranks), "world") {}

Members& Job::members(std::size_t split, int color, std::vector<int> ranks, const std::string& name) {
  const std::lock_guard lock(groups_mutex_);
  std::unique_ptr<Members>& group = groups_[{split, color}];
  if (group == nullptr) group = std::make_unique<Members>(*this, std::move(ranks), name);
  return *group;
}

void Job::note_entry(int rank, const Call& call) {
  Entry& entry = entries_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(entry.mutex);
  entry.last = call;
  entry.any = true;
}

std::string Job::last_entered(int rank) const {
  const Entry& entry = entries_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(entry.mutex);
  return entry.any ? describe(entry.last) : std::string{};
}

void Job::fail(int rank, const std::string& reason) noexcept try {
  {
    const std::lock_guard lock(failure_mutex_);
    if (first_failed_ >= 0) return;
    first_failed_ = rank;
    reason_ = reason;
    failed_.store(true);
  }
  wake_everyone();
} catch (...) {
  failed_.store(true);  // out of memory for the text: the failure itself must not be lost
  wake_everyone();
}

int Job::first_failed() const {
  const std::lock_guard lock(failure_mutex_);
  return first_failed_;
}

std::string Job::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failed_first(first_failed_, reason_);
}

void Job::leave(int rank) noexcept {
  entries_[static_cast<std::size_t>(rank)].left.store(true);
  wake_everyone();
}

void Job::wake_everyone() noexcept {
  const std::lock_guard lock(groups_mutex_);
  making_.wake();
  for (const auto& [place, group] : groups_) group->wake();
}

}  // namespace loom::comm::inprocess
