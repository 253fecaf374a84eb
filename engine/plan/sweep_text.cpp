#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <vector>

#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/plan/plan_output.h"

namespace loom::plan {
namespace {

constexpr std::size_t kShown = 20;         // rows
constexpr std::size_t kChangeColumn = 51;  // of a row
constexpr std::size_t kCostColumns = 9;
constexpr std::size_t kReason = 5;   // the indentation of reasons
constexpr std::size_t kParts = 4;    // of a difference in time, at most
constexpr double kSmallPart = 0.02;  // of a difference: not worth a word

std::string percent_text(double share) { return figure(100 * share, 1) + " %"; }

struct Row {
  std::string number, tokens, step, memory, flushes, mfu;
  std::string cost;  // of a training; empty where there is none
  std::string change;

  std::string text() const {
    const std::string last = cost.empty() ? "" : fmt::format("{:>{}}", cost, kCostColumns);
    return wrapped(fmt::format("{:<4}{:>12}{:>10}{:>9}{:>8}{:>6}{}  {}\n", number, tokens, step, memory, flushes, mfu,
                               last, change),
                   kChangeColumn + last.size());
  }
};

// The price of the training, or its days; a large one without decimals.
std::string cost_text(const std::optional<TrainingCost>& cost) {
  if (!cost) return "";
  const double value = cost->price.value_or(cost->days);
  return figure(value, value < 1e5 ? 2 : 0);
}

std::string cost_title(const std::optional<TrainingCost>& cost) { return !cost ? "" : cost->price ? "price" : "days"; }

std::string head(const Sweep& sweep) {
  std::string text = fmt::format("{} of {} meshes fit, with ranks of tp x ulysses x ring and of ep among {} devices\n",
                                 sweep.meshes_that_fit, sweep.meshes, sweep.together);
  for (const Pruned& pruned : sweep.pruned) {
    text += wrapped(fmt::format("  {} pruned: {}\n", pruned.candidates, pruned.reason), 4);
  }
  return text;
}

std::string exposed_text(const BestMesh& best, const StepEstimate& plan) {
  const auto share = [&](std::int64_t ns) { return static_cast<double>(ns) / static_cast<double>(plan.time.step_ns); };
  if (best.exposed.empty()) return "no exposed communication";
  std::vector<std::string> axes;
  for (const virtual_time::AxisTime& axis : best.exposed) {
    axes.push_back(fmt::format("{} {}", axis.axis, percent_text(share(axis.exposed_ns))));
  }
  return fmt::format("exposed communication {} of the step ({})",
                     percent_text(share(plan.time.breakdown.exposed_comm_ns)), fmt::join(axes, ", "));
}

std::string parts_text(const std::vector<TokenTime>& differences) {
  double all = 0;
  for (const TokenTime& part : differences) all += std::abs(part.ns);
  std::vector<std::string> parts;
  for (const TokenTime& part : differences) {
    if (parts.size() == kParts || std::abs(part.ns) <= kSmallPart * all) break;
    const auto ns = static_cast<std::int64_t>(std::llround(std::abs(part.ns)));
    parts.push_back(fmt::format("{} {} {}", part.part, time_text(ns), part.ns > 0 ? "more" : "less"));
  }
  return parts.empty() ? "in no part" : fmt::to_string(fmt::join(parts, ", "));
}

// Of the first against the second, and of the others against the first.
std::string difference_text(const BestMesh& best, bool is_first) {
  if (!best.against) return "the only mesh that fits";
  const std::int64_t bytes = std::abs(best.more_bytes);
  return fmt::format("{} {} by {} of the time of a token: {}; {}", is_first ? "ahead of" : "behind",
                     is_first ? "2" : "1", percent_text(std::abs(best.longer)), parts_text(best.differences),
                     bytes == 0 ? "the same memory" : memory_text(bytes) + (best.more_bytes > 0 ? " more" : " less"));
}

std::string best_text(const Sweep& sweep, std::size_t number) {
  const BestMesh& best = sweep.best[number];
  const Candidate& candidate = sweep.fitting[best.row];
  const StepEstimate& plan = candidate.plan;
  const auto line = [](const std::string& text) { return wrapped(std::string(kReason, ' ') + text + "\n", kReason); };
  return fmt::format("  {}. {}: {} tokens/s per device\n", number + 1, to_text(best.degrees),
                     figure(plan.throughput.tokens_per_s_per_device, 0)) +
         line(candidate.change) +
         line(fmt::format("{}; peak reserved {} of {}", exposed_text(best, plan),
                          memory_text(plan.memory.peak_reserved_bytes), memory_text(plan.memory.capacity_bytes))) +
         line(difference_text(best, number == 0));
}

using Rows = std::vector<std::size_t>;

template <typename Of>
std::int64_t most(const Sweep& sweep, const Rows& rows, Of of) {
  std::int64_t largest = 0;
  for (const std::size_t i : rows) largest = std::max<std::int64_t>(largest, of(sweep.fitting[i].plan));
  return largest;
}

bool is_pareto(const Sweep& sweep, std::size_t i) { return std::ranges::binary_search(sweep.pareto, i); }

std::string table(const Sweep& sweep, const Rows& rows) {
  const Unit time = unit_of_time(most(sweep, rows, [](const StepEstimate& plan) { return plan.time.step_ns; }));
  const Unit bytes =
      unit_of_bytes(most(sweep, rows, [](const StepEstimate& plan) { return plan.memory.peak_reserved_bytes; }));
  std::string text = Row{.number = "row",
                         .tokens = "tokens/s/dev",
                         .step = fmt::format("step {}", time.name),
                         .memory = std::string(bytes.name),
                         .flushes = "flushes",
                         .mfu = "MFU %",
                         .cost = cost_title(sweep.fitting[rows.front()].plan.training),
                         .change = "change"}
                         .text();
  for (const std::size_t i : rows) {
    const Candidate& candidate = sweep.fitting[i];
    const StepEstimate& plan = candidate.plan;
    text += Row{.number = fmt::format("{}{}", i, is_pareto(sweep, i) ? "*" : ""),
                .tokens = figure(plan.throughput.tokens_per_s_per_device, 0),
                .step = figure(plan.time.step_ns, time),
                .memory = figure(plan.memory.peak_reserved_bytes, bytes),
                .flushes = std::to_string(plan.memory.cache_flushes),
                .mfu = figure(100 * plan.throughput.mfu, 1),
                .cost = cost_text(plan.training),
                .change = candidate.change}
                .text();
  }
  return text;
}

// The fastest rows, and those further down that no other beats.
std::string tables(const Sweep& sweep) {
  Rows shown, further;
  for (std::size_t i = 0; i < std::min(kShown, sweep.fitting.size()); ++i) shown.push_back(i);
  for (const std::size_t i : sweep.pareto) {
    if (i >= kShown && further.size() < kShown) further.push_back(i);
  }
  std::string text =
      fmt::format("\n{} configurations fit; the fastest per token first; *: none is as fast with less memory\n",
                  sweep.fitting.size()) +
      table(sweep, shown);
  const std::size_t hidden = sweep.fitting.size() - shown.size() - further.size();
  if (!further.empty()) text += "\nslower, with less memory than any that is as fast\n" + table(sweep, further);
  if (hidden > 0) text += fmt::format("and {} more (--json has all)\n", hidden);
  return text;
}

}  // namespace

std::string to_text(const Sweep& sweep) {
  std::string text = head(sweep);
  if (sweep.fitting.empty()) return text + "0 configurations fit\n";
  text += "\nthe best meshes\n";
  for (std::size_t i = 0; i < sweep.best.size(); ++i) text += best_text(sweep, i);
  text += tables(sweep);
  if (sweep.fitting_in_part > 0) {
    text +=
        fmt::format("and {} more fit with fewer micro-batches; these were not planned whole\n", sweep.fitting_in_part);
  }
  return text;
}

}  // namespace loom::plan
