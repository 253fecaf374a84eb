#include "engine/plan/smart_swap.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/core/wrapped.h"

namespace loom::plan {
namespace {

// The blocks are in the order of their first tensors.
struct SwapCandidate {
  SwapChoice choice;
  std::size_t block = 0;

  double weight() const { return static_cast<double>(choice.bytes) * static_cast<double>(choice.idle_ns); }
};

// When the compute stream is done with the entry of this number; the log begins with the recording.
std::int64_t done_ns(const virtual_time::RankTimes& times, std::int64_t number) {
  if (number < 0) return 0;
  require(number < static_cast<std::int64_t>(times.entries.size()), "entry {} of a step of {}", number,
          times.entries.size());
  return times.entries[static_cast<std::size_t>(number)].end;
}

std::int64_t copies_ns(const virtual_time::TimeModel& model, std::int64_t bytes) {
  std::int64_t sum = 0;
  for (const auto work : {device::WorkKind::kD2H, device::WorkKind::kH2D}) {
    sum += model.work_ns(
        "swap",
        {.read_bytes = bytes, .written_bytes = bytes, .unit = device::Unit::kHostLink, .pinned = true, .work = work});
  }
  return sum;
}

// Each tensor once, with its shortest idle time; only those that the copies fit.
std::vector<SwapCandidate> candidates_of(const offload::SwapWatch& watch, const virtual_time::RankTimes& times,
                                         const virtual_time::TimeModel& model) {
  std::vector<SwapCandidate> all;
  std::map<std::string, std::size_t> blocks;
  std::map<std::pair<std::size_t, std::int64_t>, std::size_t> known;
  for (const offload::SeenTensor& seen : watch.seen) {
    const std::size_t block = blocks.emplace(seen.block, blocks.size()).first->second;
    if (seen.last_block || seen.wanted < 0) continue;
    const std::int64_t idle = done_ns(times, seen.wanted) - done_ns(times, seen.saved);
    const auto [found, is_new] = known.emplace(std::pair(block, seen.ordinal), all.size());
    if (is_new) {
      all.push_back({{seen.block, seen.ordinal, seen.what, seen.bytes, idle}, block});
    } else {
      SwapChoice& choice = all[found->second].choice;
      choice.idle_ns = std::min(choice.idle_ns, idle);
    }
  }
  std::erase_if(all, [&](const SwapCandidate& c) { return c.choice.idle_ns < copies_ns(model, c.choice.bytes); });
  std::ranges::sort(all, [](const SwapCandidate& a, const SwapCandidate& b) {
    if (a.weight() != b.weight()) return a.weight() > b.weight();
    return std::pair(a.block, a.choice.ordinal) < std::pair(b.block, b.choice.ordinal);
  });
  return all;
}

std::vector<offload::ChosenTensors> tensors_of(const std::vector<SwapChoice>& chosen) {
  std::map<std::string, std::vector<std::int64_t>> by_block;
  for (const SwapChoice& choice : chosen) by_block[choice.block].push_back(choice.ordinal);
  std::vector<offload::ChosenTensors> tensors;
  for (auto& [block, ordinals] : by_block) {
    std::ranges::sort(ordinals);
    tensors.push_back({block, std::move(ordinals)});
  }
  return tensors;
}

// Plans of one job with some tensors swapped.
class Trials {
 public:
  Trials(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
         const virtual_time::HardwareProfile& profile, std::int64_t budget_bytes)
      : arguments_(arguments), callbacks_(callbacks), profile_(profile) {
    arguments_.memory.device_memory_mib = 0;  // the budget is the memory, whatever the device has
    profile_.memory.capacity_bytes = budget_bytes;
    profile_.memory.context_bytes = 0;
    profile_.memory.communicator.reset();
  }

  StepEstimate watched(const std::shared_ptr<offload::SwapWatch>& watch) const {
    train::TrainSections arguments = arguments_;
    arguments.swap.smart_swap_watch = watch;
    return estimate_step(arguments, callbacks_, profile_, Capacity::kLifted);
  }
  StepEstimate unbounded(const std::vector<SwapChoice>& chosen) const { return plan(chosen, Capacity::kLifted); }
  // None where the step does not run within the budget.
  std::optional<StepEstimate> within_budget(const std::vector<SwapChoice>& chosen) const {
    try {
      return plan(chosen, Capacity::kOfTheProfile);
    } catch (const OutOfMemoryError&) {
      return std::nullopt;
    }
  }

 private:
  StepEstimate plan(const std::vector<SwapChoice>& chosen, Capacity capacity) const {
    train::TrainSections arguments = arguments_;
    arguments.swap.smart_swap_chosen = tensors_of(chosen);
    return estimate_step(arguments, callbacks_, profile_, capacity);
  }

  train::TrainSections arguments_;
  const train::PretrainCallbacks& callbacks_;
  virtual_time::HardwareProfile profile_;
};

std::vector<SwapChoice> first_of(const std::vector<SwapCandidate>& candidates, std::size_t count) {
  std::vector<SwapChoice> chosen;
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(candidates[i].choice);
  return chosen;
}

[[noreturn]] void refuse(const SmartSwap& swap, const StepEstimate& least) {
  config_error(
      "--smart-swap: a step has to fit {:.1f} MiB, and needs {:.1f} MiB without swap and {:.1f} MiB with all of the {} "
      "tensors whose copies fit their idle time on the host; give at least {:.0f} MiB, recompute modules "
      "(recompute_modules), shard over more ranks, or use a smaller micro-batch",
      mib(swap.budget_bytes), mib(swap.unswapped_bytes), mib(least.memory.peak_reserved_bytes), swap.candidates,
      std::ceil(mib(least.memory.peak_reserved_bytes)));
}

struct Row {
  std::size_t tensors = 0;
  std::int64_t bytes = 0, idle_ns = 0, exposed_ns = 0;
};

std::map<std::string, Row> rows_of(const SmartSwap& swap) {
  std::map<std::string, Row> rows;
  for (const SwapChoice& choice : swap.chosen) {
    Row& row = rows[choice.block];
    row.idle_ns = row.tensors == 0 ? choice.idle_ns : std::min(row.idle_ns, choice.idle_ns);
    ++row.tensors;
    row.bytes += choice.bytes;
  }
  for (const SwapEstimate& exposed : swap.exposed) rows[exposed.block].exposed_ns = exposed.exposed_ns;
  return rows;
}

// In the order of `exposed`.
std::string module_table(const SmartSwap& swap) {
  std::map<std::string, Row> rows = rows_of(swap);
  std::size_t width = 8;
  std::int64_t bytes = 0, idle_ns = 0, exposed_ns = 0;
  for (const auto& [block, row] : rows) {
    width = std::max(width, block.size() + 2);
    bytes = std::max(bytes, row.bytes);
    idle_ns = std::max(idle_ns, row.idle_ns);
    exposed_ns = std::max(exposed_ns, row.exposed_ns);
  }
  const Unit of_bytes = unit_of_bytes(bytes), of_idle = unit_of_time(idle_ns), of_exposed = unit_of_time(exposed_ns);
  std::string text = fmt::format("  {:<{}}{:>8}{:>10}{:>10}{:>12}\n", "module", width, "tensors", of_bytes.name,
                                 fmt::format("idle {}", of_idle.name), fmt::format("exposed {}", of_exposed.name));
  for (const SwapEstimate& exposed : swap.exposed) {
    const Row& row = rows[exposed.block];
    text += fmt::format("  {:<{}}{:>8}{:>10}{:>10}{:>12}\n", exposed.block, width, row.tensors,
                        figure(row.bytes, of_bytes), figure(row.idle_ns, of_idle), figure(row.exposed_ns, of_exposed));
  }
  return text;
}

}  // namespace

std::vector<offload::ChosenTensors> SmartSwap::tensors() const { return tensors_of(chosen); }

std::int64_t swap_budget(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                         const virtual_time::HardwareProfile& profile) {
  const auto& size = arguments.swap.smart_swap_device_size;
  return size ? *size << 20 : capacity_of(arguments, callbacks, profile);
}

SmartSwap choose_swaps(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                       const virtual_time::HardwareProfile& profile, std::int64_t budget_bytes) {
  const Trials trials(arguments, callbacks, profile, budget_bytes);
  const auto watch = std::make_shared<offload::SwapWatch>();
  const StepEstimate unswapped = trials.watched(watch);
  SmartSwap swap;
  swap.budget_bytes = budget_bytes;
  swap.unswapped_bytes = swap.swapped_bytes = unswapped.memory.peak_reserved_bytes;
  const std::vector<SwapCandidate> candidates =
      candidates_of(*watch, unswapped.run().times, virtual_time::TimeModel(profile));
  swap.candidates = static_cast<std::int64_t>(candidates.size());
  if (trials.within_budget({})) return swap;

  std::optional<StepEstimate> best = trials.within_budget(first_of(candidates, candidates.size()));
  if (!best) refuse(swap, trials.unbounded(first_of(candidates, candidates.size())));
  // More tensors are taken to need no more memory: the least number is found by halving.
  std::size_t too_few = 0, enough = candidates.size();
  while (enough - too_few > 1) {
    const std::size_t middle = too_few + (enough - too_few) / 2;
    if (auto plan = trials.within_budget(first_of(candidates, middle))) {
      enough = middle;
      best = std::move(plan);
    } else {
      too_few = middle;
    }
  }
  swap.chosen = first_of(candidates, enough);
  swap.swapped_bytes = best->memory.peak_reserved_bytes;
  swap.exposed = best->swaps;
  return swap;
}

std::string to_text(const SmartSwap& swap) {
  std::string text = fmt::format("smart swap: a step has to fit {} and needs {} without swap",
                                 memory_text(swap.budget_bytes), memory_text(swap.unswapped_bytes));
  if (swap.chosen.empty()) return text + ": nothing is swapped\n";
  text += fmt::format("; {} of {} tensors are swapped, and it needs {}\n", swap.chosen.size(), swap.candidates,
                      memory_text(swap.swapped_bytes));
  return wrapped(text, 2) + module_table(swap);
}

nlohmann::ordered_json to_json(const SmartSwap& swap) {
  nlohmann::ordered_json json = {{"budget_bytes", swap.budget_bytes},
                                 {"unswapped_bytes", swap.unswapped_bytes},
                                 {"swapped_bytes", swap.swapped_bytes},
                                 {"candidates", swap.candidates},
                                 {"tensors", nlohmann::ordered_json::array()}};
  for (const SwapChoice& choice : swap.chosen) {
    json["tensors"].push_back({{"block", choice.block},
                               {"ordinal", choice.ordinal},
                               {"what", choice.what},
                               {"bytes", choice.bytes},
                               {"idle_ns", choice.idle_ns}});
  }
  return json;
}

}  // namespace loom::plan
