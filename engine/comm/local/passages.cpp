#include "engine/comm/local/passages.h"

#include <utility>

#include "engine/comm/local/copy.h"
#include "engine/comm/local/rendezvous.h"
#include "engine/core/error.h"

namespace loom::comm::inprocess {

Passages::Passages(Job& job, const Rendezvous& meetings, const std::vector<int>& ranks, const std::string& label)
    : job_(job), meetings_(meetings), ranks_(ranks), label_(label), states_(ranks.size()) {}

void Passages::pass(int member, Passing passing) {
  job_.note_entry(rank_of(member), passing.call);
  Lock lock(mutex_);
  State& mine = of(member);
  mine.passing = std::move(passing);
  mine.gave_up = false;
  mine.sending = mine.passing.to == ProcessGroup::kNobody ? Message::kNone : Message::kShown;
  mine.receiving = mine.passing.from == ProcessGroup::kNobody ? Message::kNone : Message::kShown;
  changed_.notify_all();
  if (mine.receiving == Message::kShown) receive(lock, member);
  if (mine.sending != Message::kNone) await(lock, member, [&] { return mine.sending == Message::kNone; });
}

void Passages::receive(Lock& lock, int member) {
  State& mine = of(member);
  State& theirs = of(mine.passing.from);
  await(lock, member, [&] {
    return theirs.sending == Message::kShown && theirs.passing.to == member && !theirs.gave_up &&
           !difference(rank_of(member), mine.passing.call, rank_of(mine.passing.from), theirs.passing.call);
  });
  theirs.sending = mine.receiving = Message::kUnderWay;
  lock.unlock();
  copy_between_ranks(mine.passing.received, theirs.passing.sent, mine.passing.call.expected);
  lock.lock();
  theirs.sending = mine.receiving = Message::kNone;
  changed_.notify_all();
}

void Passages::await(Lock& lock, int member, const std::function<bool()>& done) {
  std::optional<std::string> verdict;
  waiting_.fetch_add(1);  // before the look at the peers' collectives
  const bool in_time = changed_.wait_until(lock, std::chrono::steady_clock::now() + job_.timeout(),
                                           [&] { return done() || (verdict = reason_to_give_up(member)); });
  waiting_.fetch_sub(1);
  if (verdict) give_up(lock, member, *verdict);
  if (in_time) return;
  // A message that is under way is over after its copy.
  if (open_peers(member).empty()) return changed_.wait(lock, done);
  give_up(lock, member, late(member));
}

bool Passages::concerns(int member, int peer) const {
  const State& state = of(member);
  return (state.sending == Message::kShown && state.passing.to == peer) ||
         (state.receiving == Message::kShown && state.passing.from == peer);
}

std::vector<int> Passages::open_peers(int member) const {
  const State& mine = of(member);
  std::vector<int> peers;
  if (mine.sending == Message::kShown) peers.push_back(mine.passing.to);
  if (mine.receiving == Message::kShown && (peers.empty() || peers.front() != mine.passing.from)) {
    peers.push_back(mine.passing.from);
  }
  return peers;
}

std::optional<std::string> Passages::reason_to_give_up(int member) const {
  const std::vector<int> peers = open_peers(member);
  if (peers.empty()) return std::nullopt;
  const Call& mine = of(member).passing.call;
  for (const int peer : peers) {
    const Call* theirs = concerns(peer, member) ? &of(peer).passing.call : meetings_.awaits(peer, member);
    if (theirs == nullptr) continue;
    if (auto differs = difference(rank_of(member), mine, rank_of(peer), *theirs)) return differs;
  }
  if (job_.failed()) return job_.failure();
  for (const int peer : peers) {
    if (job_.has_left(rank_of(peer))) return has_ended({rank_of(peer), job_.last_entered(rank_of(peer))});
  }
  return std::nullopt;
}

std::string Passages::late(int member) const {
  std::vector<Missing> missing;
  for (const int peer : open_peers(member)) missing.push_back({rank_of(peer), job_.last_entered(rank_of(peer))});
  return did_not_come(missing, job_.timeout());
}

void Passages::give_up(Lock& lock, int member, const std::string& verdict) {
  State& mine = of(member);
  mine.gave_up = true;
  changed_.wait(lock, [&] { return mine.sending != Message::kUnderWay; });  // the peer reads this member's memory
  const std::string text = where(rank_of(member), mine.passing.call, label_) + verdict;
  lock.unlock();
  job_.fail(rank_of(member), text);
  throw CommError(text);
}

void Passages::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace loom::comm::inprocess
