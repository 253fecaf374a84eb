#include "engine/explain/hang.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace loom::explain {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::string_view kGloo = "gloo";  // its texts name no process group

SeenCollective seen_of(const NcclTimeout& timeout) { return {timeout.op, timeout.numel_in, timeout.numel_out}; }
SeenCollective seen_of(const FingerPrint& print) { return {print.op, print.numel, {}}; }

// Puts the texts of one process group together.
class HangLog {
 public:
  explicit HangLog(std::string group) { hang_.group = std::move(group); }

  const std::string& group() const { return hang_.group; }
  bool reports(std::int64_t rank, std::int64_t seq) const {
    const auto at = states_.find(rank);
    return at != states_.end() && at->second.at == seq;
  }

  void add(const NcclTimeout& timeout) {
    states_[timeout.rank].state.seen.emplace(timeout.seq, seen_of(timeout));
    hang_.timeout_ms = std::max(hang_.timeout_ms, timeout.timeout_ms);
    wait_for(timeout.seq);
  }
  void add(const NcclState& text) {
    State& known = states_[text.rank];
    known.at = text.at.value_or(text.last_completed + 1);
    known.state.last_enqueued = text.last_enqueued;
    known.state.last_completed = text.last_completed;
    if (text.at) wait_for(*text.at);
  }

  void add(const CollectiveMismatch& text) {
    add(text.rank, text.own);
    if (text.other) add(text.other_rank, *text.other);
  }
  void add(const BarrierFailure& text, const Speaker& speaker) {
    hang_.first_seq = 0;
    hang_.timeout_ms = std::max(hang_.timeout_ms, text.timeout_ms);
    missing_.insert(text.missing.begin(), text.missing.end());
    const auto rank = text.rank ? text.rank : speaker.rank;
    if (!rank) return;
    if (text.collective) {
      add(*rank, *text.collective);
    } else {
      states_[*rank];
    }
  }

  Hang take() {
    for (auto& [rank, known] : states_) {
      known.state.rank = rank;
      hang_.ranks.push_back(std::move(known.state));
    }
    hang_.waited = waited_.value_or(hang_.first_seq == 0 ? -1 : 0);
    compare();
    find_size();
    find_silent();
    find_behind();
    return std::move(hang_);
  }

 private:
  struct State {
    RankState state;
    std::int64_t at = -1;
  };

  void add(std::int64_t rank, const FingerPrint& print) {
    hang_.first_seq = 0;
    states_[rank].state.seen.emplace(print.seq, seen_of(print));
    wait_for(print.seq);
  }
  void wait_for(std::int64_t seq) { waited_ = waited_ ? std::min(*waited_, seq) : seq; }

  // Of the ranks that report a number, the collective of most; of equals that of the lowest rank.
  std::optional<SeenCollective> most_at(std::int64_t seq) const {
    std::vector<std::pair<SeenCollective, int>> counts;
    for (const RankState& rank : hang_.ranks) {
      const auto seen = rank.seen.find(seq);
      if (seen == rank.seen.end()) continue;
      const auto known = std::ranges::find(counts, seen->second, [](const auto& count) { return count.first; });
      if (known == counts.end()) {
        counts.emplace_back(seen->second, 1);
      } else {
        ++known->second;
      }
    }
    if (counts.empty()) return std::nullopt;
    return std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; })->first;
  }

  void compare() {
    hang_.collective = most_at(hang_.waited);
    std::map<std::int64_t, SeenCollective> most;
    for (const RankState& rank : hang_.ranks) {
      for (const auto& [seq, seen] : rank.seen) {
        if (!most.contains(seq)) most.emplace(seq, *most_at(seq));
        if (seen != most.at(seq)) hang_.others.push_back({seq, rank.rank, seen, most.at(seq)});
      }
    }
    std::ranges::stable_sort(hang_.others, {}, &OtherCollective::seq);
  }

  void find_size() {
    for (const RankState& rank : hang_.ranks) {
      for (const auto& [seq, seen] : rank.seen) {
        const std::string_view op = plain_op(seen.op);
        if ((op != "ALLGATHER" && op != "REDUCE_SCATTER") || !seen.numel_in || !seen.numel_out) continue;
        const std::int64_t large = std::max(*seen.numel_in, *seen.numel_out);
        const std::int64_t small = std::min(*seen.numel_in, *seen.numel_out);
        if (small > 0 && large % small == 0 && large / small <= kMostRanks) hang_.size = large / small;
        if (hang_.size) return;
      }
    }
  }

  void find_silent() {
    for (std::int64_t rank = 0; rank < hang_.size.value_or(0); ++rank) {
      if (!states_.contains(rank)) hang_.silent.push_back(rank);
    }
  }

  void find_behind() {
    hang_.behind.assign(missing_.begin(), missing_.end());
    if (!hang_.behind.empty()) return;
    std::optional<std::int64_t> least, most;
    for (const RankState& rank : hang_.ranks) {
      if (rank.last_enqueued && *rank.last_enqueued < hang_.waited) hang_.behind.push_back(rank.rank);
      if (!rank.last_completed) continue;
      least = std::min(least.value_or(*rank.last_completed), *rank.last_completed);
      most = std::max(most.value_or(*rank.last_completed), *rank.last_completed);
    }
    if (!hang_.behind.empty() || least == most) return;
    for (const RankState& rank : hang_.ranks) {
      if (rank.last_completed == least) hang_.behind.push_back(rank.rank);
    }
  }

  Hang hang_;
  std::map<std::int64_t, State> states_;  // by rank
  std::set<std::int64_t> missing_;
  std::optional<std::int64_t> waited_;
};

HangLog& log_of(std::vector<HangLog>& logs, const std::string& group) {
  const auto known = std::ranges::find(logs, group, &HangLog::group);
  return known == logs.end() ? logs.emplace_back(group) : *known;
}

// The group of a text that does not name it.
std::string group_of(const std::vector<HangLog>& logs, const NcclTimeout& timeout) {
  const auto known =
      std::ranges::find_if(logs, [&](const HangLog& log) { return log.reports(timeout.rank, timeout.seq); });
  return known == logs.end() ? std::string() : known->group();
}

}  // namespace

std::vector<Hang> hangs_of(const LogTexts& texts) {
  std::vector<HangLog> logs;
  for (const ErrorReport& report : texts.reports) {
    if (const auto* state = std::get_if<NcclState>(&report.what)) log_of(logs, state->group).add(*state);
  }
  for (const ErrorReport& report : texts.reports) {
    const auto* timeout = std::get_if<NcclTimeout>(&report.what);
    if (timeout == nullptr) continue;
    log_of(logs, timeout->group.empty() ? group_of(logs, *timeout) : timeout->group).add(*timeout);
  }
  for (const ErrorReport& report : texts.reports) {
    if (const auto* mismatch = std::get_if<CollectiveMismatch>(&report.what)) {
      log_of(logs, std::string(kGloo)).add(*mismatch);
    } else if (const auto* barrier = std::get_if<BarrierFailure>(&report.what)) {
      log_of(logs, std::string(kGloo)).add(*barrier, report.speaker);
    }
  }
  std::vector<Hang> hangs;
  for (HangLog& log : logs) hangs.push_back(log.take());
  return hangs;
}

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from < ranks.size();) {
    std::size_t to = from;
    while (to + 1 < ranks.size() && ranks[to + 1] == ranks[to] + 1) ++to;
    parts.push_back(to == from       ? fmt::to_string(ranks[from])
                    : to == from + 1 ? fmt::format("{}, {}", ranks[from], ranks[to])
                                     : fmt::format("{} to {}", ranks[from], ranks[to]));
    from = to + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace loom::explain
