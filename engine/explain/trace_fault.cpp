#include "engine/explain/trace_fault.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/shown_path.h"

namespace loom::explain {
namespace {

using Ranks = std::map<std::int64_t, std::deque<FsdpPass>>;

const FsdpPass* pass_of(const std::deque<FsdpPass>& passes, std::int64_t number) {
  const auto found = std::ranges::find(passes, number, &FsdpPass::number);
  return found == passes.end() ? nullptr : &*found;
}

bool is_of_backward(FsdpStep step) {
  return step == FsdpStep::kPreBackward || step == FsdpStep::kPostBackward || step == FsdpStep::kRootPostBackward;
}

bool is_leaving(FsdpStep step) { return step == FsdpStep::kPostForward || step == FsdpStep::kPostBackward; }

// Of an event behind those of its pass.
std::string phase_of(FsdpStep step, const std::vector<FsdpEvent>& before) {
  if (is_of_backward(step)) return "backward";
  if (step == FsdpStep::kRootPreForward) return "optimizer";
  const bool again = std::ranges::any_of(before, is_of_backward, &FsdpEvent::step);
  return again ? "recompute" : "forward";
}

std::vector<FsdpEvent> first_of(const std::vector<FsdpEvent>& events, std::size_t count) {
  return {events.begin(), events.begin() + static_cast<std::ptrdiff_t>(std::min(count, events.size()))};
}

// Of the ranks in one pass: the event at a place, none where the rank's trace has ended.
struct Column {
  std::vector<std::int64_t> ended;
  std::vector<std::pair<std::int64_t, FsdpEvent>> events;

  bool agrees() const {
    if (!ended.empty() && !events.empty()) return false;
    return std::ranges::all_of(events, [&](const auto& one) { return one.second == events.front().second; });
  }
  std::ptrdiff_t count(const FsdpEvent& event) const {
    return std::ranges::count(events, event, [](const auto& one) { return one.second; });
  }
};

class FaultSearch {
 public:
  explicit FaultSearch(const FsdpTrace& trace) : trace_(trace), ranks_(trace.ranks()) {}

  std::vector<TraceFault> run() {
    std::int64_t first = 1, last = 0;
    for (const auto& [rank, passes] : ranks_) {
      if (passes.size() > 2) first = std::max(first, passes.front().number);
      last = std::max(last, passes.back().number);
    }
    if (auto faults = far_behind(first); !faults.empty()) return faults;
    for (std::int64_t pass = first; pass <= last; ++pass) {
      auto faults = faults_in(pass);
      if (!faults.empty()) return faults;
    }
    return {};
  }

 private:
  // Ranks whose last pass the others no longer hold: they stopped at their last line.
  std::vector<TraceFault> far_behind(std::int64_t first) const {
    std::vector<TraceFault> faults;
    for (const auto& [rank, passes] : ranks_) {
      const FsdpPass& pass = passes.back();
      if (pass.number >= first) continue;
      faults.push_back(
          fault(rank, pass.number, pass.events.size() - 1, pass.events.back(), "the other ranks", nullptr));
      faults.back().inside = !is_leaving(pass.events.back().step);
    }
    return faults;
  }

  std::size_t longest(std::int64_t pass) const {
    std::size_t most = 0;
    for (const auto& [rank, passes] : ranks_) {
      if (const FsdpPass* const held = pass_of(passes, pass)) most = std::max(most, held->events.size());
    }
    return most;
  }

  // Ranks whose pass is no longer held are left out.
  Column column(std::int64_t pass, std::size_t at) const {
    Column column;
    for (const auto& [rank, passes] : ranks_) {
      if (pass < passes.front().number) continue;
      const FsdpPass* const held = pass_of(passes, pass);
      if (held != nullptr && at < held->events.size()) {
        column.events.emplace_back(rank, held->events[at]);
      } else {
        column.ended.push_back(rank);
      }
    }
    return column;
  }

  std::vector<TraceFault> faults_in(std::int64_t pass) const {
    const std::size_t size = longest(pass);
    for (std::size_t at = 0; at < size; ++at) {
      const Column found = column(pass, at);
      if (!found.agrees()) return faults_at(pass, at, found);
    }
    return {};
  }

  std::vector<TraceFault> faults_at(std::int64_t pass, std::size_t at, const Column& found) const {
    const auto [expected, decided_by] = expected_at(pass, at, found);
    std::vector<TraceFault> faults;
    for (const auto& [rank, event] : found.events) {
      if (event != expected) faults.push_back(fault(rank, pass, at, expected, decided_by, &event));
    }
    if (!faults.empty()) return faults;
    for (const std::int64_t rank : found.ended) {
      faults.push_back(fault(rank, pass, at, expected, "the other ranks", nullptr));
    }
    return faults;
  }

  std::pair<FsdpEvent, std::string> expected_at(std::int64_t pass, std::size_t at, const Column& found) const {
    FsdpEvent most = found.events.front().second;
    for (const auto& [rank, event] : found.events) {
      if (found.count(event) > found.count(most)) most = event;
    }
    const bool decided = std::ranges::none_of(found.events, [&](const auto& one) {
      return one.second != most && found.count(one.second) == found.count(most);
    });
    if (decided) return {most, "most ranks"};
    if (const auto earlier = event_before(pass, at); earlier && found.count(*earlier) > 0) {
      return {*earlier, "the pass before"};
    }
    return {most, "the lowest rank"};
  }

  // The event at the same place of the pass before, behind the same events.
  std::optional<FsdpEvent> event_before(std::int64_t pass, std::size_t at) const {
    for (const auto& [rank, passes] : ranks_) {
      const FsdpPass* const now = pass_of(passes, pass);
      const FsdpPass* const before = pass_of(passes, pass - 1);
      if (now == nullptr || before == nullptr || before->events.size() <= at) continue;
      if (first_of(now->events, at) == first_of(before->events, at)) return before->events[at];
    }
    return std::nullopt;
  }

  TraceFault fault(std::int64_t rank, std::int64_t pass, std::size_t at, const FsdpEvent& expected,
                   const std::string& decided_by, const FsdpEvent* instead) const {
    const FsdpPass* const held = pass_of(ranks_.at(rank), pass);
    const std::vector<FsdpEvent> before = held == nullptr ? std::vector<FsdpEvent>() : first_of(held->events, at);
    return {.rank = rank,
            .skipped = instead != nullptr,
            .inside = is_leaving(expected.step),
            .pass = pass,
            .phase = phase_of(expected.step, before),
            .group = trace_.group(expected),
            .instead = instead == nullptr ? ""
                                          : fmt::format("{} of group '{}'", name_of(instead->step),
                                                        shown_path(trace_.group(*instead))),
            .decided_by = decided_by};
  }

  const FsdpTrace& trace_;
  const Ranks& ranks_;
};

TracedRank last_of(std::int64_t rank, const std::deque<FsdpPass>& passes, const FsdpTrace& trace) {
  const FsdpPass& pass = passes.back();
  const FsdpEvent& event = pass.events.back();
  const auto before = first_of(pass.events, pass.events.size() - 1);
  return {.rank = rank,
          .pass = pass.number,
          .event = std::string(name_of(event.step)),
          .phase = event.step == FsdpStep::kRootPreForward ? "forward" : phase_of(event.step, before),
          .group = trace.group(event)};
}

}  // namespace

std::optional<TraceFinding> finding_of(const FsdpTrace& trace) {
  if (trace.ranks().empty()) return std::nullopt;
  TraceFinding finding;
  for (const auto& [rank, passes] : trace.ranks()) finding.ranks.push_back(last_of(rank, passes, trace));
  if (!trace.is_cut()) finding.faults = FaultSearch(trace).run();
  return finding;
}

}  // namespace loom::explain
