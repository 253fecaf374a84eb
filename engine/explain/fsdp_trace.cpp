#include "engine/explain/fsdp_trace.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/explain/error_text.h"
#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::size_t kMostPasses = 3;
constexpr std::size_t kMostEvents = std::size_t{1} << 22;
constexpr std::size_t kMostNames = std::size_t{1} << 16;
constexpr std::size_t kMostRanks = std::size_t{1} << 16;
constexpr std::size_t kNameBytes = 1024;

constexpr std::array<std::pair<std::string_view, FsdpStep>, 6> kSteps{{
    {"root_pre_forward", FsdpStep::kRootPreForward},
    {"pre_forward", FsdpStep::kPreForward},
    {"post_forward", FsdpStep::kPostForward},
    {"pre_backward", FsdpStep::kPreBackward},
    {"post_backward", FsdpStep::kPostBackward},
    {"root_post_backward", FsdpStep::kRootPostBackward},
}};

struct FsdpLine {
  FsdpStep step;
  std::string_view group;
};

std::optional<FsdpLine> read_fsdp_line(std::string_view line) {
  TextScanner text(line);
  if (!text.skip_past("] FSDP::")) return std::nullopt;
  for (const auto& [name, step] : kSteps) {
    if (!text.take(name)) continue;
    if (text.rest().empty()) return FsdpLine{step, {}};
    const std::string_view rest = text.rest();
    if (!rest.starts_with(" (") || !rest.ends_with(")") || rest.size() > kNameBytes) return std::nullopt;
    return FsdpLine{step, rest.substr(2, rest.size() - 3)};
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(FsdpStep step) {
  return std::ranges::find(kSteps, step, [](const auto& row) { return row.second; })->first;
}

void FsdpTrace::take_line(std::string_view line) {
  if (overflowed_) return;
  const auto read = read_fsdp_line(line);
  if (!read) return;
  const Speaker speaker = read_speaker(line);
  const auto rank = speaker.rank ? speaker.rank : speaker.local_rank;
  if (!rank) return;
  const auto group = number_of(read->group);
  if (group) add(*rank, {read->step, *group});
}

std::optional<std::int32_t> FsdpTrace::number_of(std::string_view name) {
  if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
  if (names_.size() >= kMostNames) {
    overflow();
    return std::nullopt;
  }
  const auto number = static_cast<std::int32_t>(names_.size());
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return number;
}

void FsdpTrace::add(std::int64_t rank, FsdpEvent event) {
  if (events_ >= kMostEvents || (ranks_.size() >= kMostRanks && !ranks_.contains(rank))) return overflow();
  std::deque<FsdpPass>& passes = ranks_[rank];
  cut_ = cut_ || (passes.empty() && event.step != FsdpStep::kRootPreForward);
  if (passes.empty() || event.step == FsdpStep::kRootPreForward) {
    const std::int64_t number = passes.empty() ? 1 : passes.back().number + 1;
    passes.push_back({number, {}});
  }
  passes.back().events.push_back(event);
  ++events_;
  if (passes.size() <= kMostPasses) return;
  events_ -= passes.front().events.size();
  passes.pop_front();
}

void FsdpTrace::overflow() {
  overflowed_ = true;
  ranks_.clear();
}

}  // namespace loom::explain
