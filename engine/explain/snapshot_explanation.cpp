#include "engine/explain/snapshot_explanation.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

#include "engine/core/error.h"
#include "engine/plan/config_changes.h"
#include "engine/plan/plan_choice.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::explain {
namespace {

using plan::PlanChoice;
using sharding::Fsdp2Config;

constexpr std::int64_t kAgrees = 100;  // a distance of a hundredth of the peak
constexpr int kMostPrefetch = 2;

using Change = std::function<void(Fsdp2Config&)>;

void add_prefetch(std::vector<Change>& changes) {
  for (int groups = 0; groups <= kMostPrefetch; ++groups) {
    changes.push_back([groups](Fsdp2Config& c) { c.num_to_forward_prefetch = groups; });
    changes.push_back([groups](Fsdp2Config& c) { c.num_to_backward_prefetch = groups; });
    changes.push_back([groups](Fsdp2Config& c) { c.num_to_forward_prefetch = c.num_to_backward_prefetch = groups; });
  }
}

void add_dtypes(std::vector<Change>& changes) {
  for (const std::optional<DType> dtype : {std::optional<DType>{}, {DType::kF32}, {DType::kBF16}}) {
    changes.push_back([dtype](Fsdp2Config& c) { c.param_dtype = dtype; });
    changes.push_back([dtype](Fsdp2Config& c) { c.reduce_dtype = dtype; });
  }
}

std::vector<Change> changes_of(const plan::ChoicePlans& plans) {
  std::vector<Change> changes{[](Fsdp2Config& c) { c.reshard_after_forward = true; },
                              [](Fsdp2Config& c) { c.reshard_after_forward = false; },
                              [](Fsdp2Config& c) { c.offload_to_cpu = !c.offload_to_cpu; }};
  add_prefetch(changes);
  add_dtypes(changes);
  if (!plans.may_recompute()) return changes;
  changes.push_back([](Fsdp2Config& c) { plan::set_recompute(c, false); });
  changes.push_back([](Fsdp2Config& c) { plan::set_recompute(c, true); });
  changes.push_back([](Fsdp2Config& c) { plan::set_selected_recompute(c); });
  changes.push_back([](Fsdp2Config& c) { plan::set_swapped_recompute(c); });
  return changes;
}

// What differs from the job, each once.
std::vector<PlanChoice> choices_of(const plan::ChoicePlans& plans) {
  std::vector<PlanChoice> choices;
  if (!plans.has_file()) return choices;
  for (const Change& change : changes_of(plans)) {
    PlanChoice choice = plans.base();
    change(choice.config);
    if (choice != plans.base() && std::ranges::find(choices, choice) == choices.end()) choices.push_back(choice);
  }
  return choices;
}

// "reshard_after_forward: false": the keys in which a configuration differs.
std::string describe(const Fsdp2Config& config, const Fsdp2Config& base) {
  std::vector<std::string> changes;
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    if (!sharding::same_value(key, config, base)) changes.push_back(fmt::format("{}: {}", key.name, key.write(config)));
  }
  return fmt::to_string(fmt::join(changes, ", "));
}

TriedSetting tried(const plan::ChoicePlans& plans, const PlanChoice& choice, const io::MemorySnapshot& snapshot,
                   const SnapshotPeak& real) {
  TriedSetting setting{.change = describe(choice.config, plans.base().config)};
  try {
    const plan::StepEstimate plan = plans.plan(choice, plan::Capacity::kLifted);
    const Lineup lineup = line_up(snapshot, real, plan);
    setting.active_bytes = lineup.planned.active_bytes;
    setting.distance_bytes = lineup.distance();
  } catch (const ConfigError& error) {
    setting.refused = error.what();
  }
  return setting;
}

void try_settings(SnapshotExplanation& explanation, const plan::ChoicePlans& plans,
                  const io::MemorySnapshot& snapshot) {
  for (const PlanChoice& choice : choices_of(plans)) {
    explanation.tried.push_back(tried(plans, choice, snapshot, explanation.real));
  }
  std::ranges::stable_sort(explanation.tried, {}, [](const TriedSetting& setting) {
    return std::pair(!setting.refused.empty(), setting.distance_bytes);
  });
  if (explanation.tried.empty() || !explanation.tried.front().refused.empty()) return;
  const std::int64_t distance = explanation.lineup.distance();
  explanation.explains = explanation.tried.front().distance_bytes <= distance - distance / 5;
}

}  // namespace

SnapshotExplanation explain_snapshot(const std::filesystem::path& file, const JobOfRun& job) {
  const io::MemorySnapshot snapshot = io::read_memory_snapshot(file);
  SnapshotExplanation explanation{.file = file.string(), .real = peak_of(snapshot, file.string())};
  train::TrainSections arguments = job.arguments;
  arguments.memory.record_allocator = true;
  const plan::ChoicePlans plans(arguments, job.callbacks, job.profile, job.options);
  const plan::StepEstimate plan = plans.plan(plans.base(), plan::Capacity::kLifted);
  explanation.model = plan.model;
  explanation.device = plan.device;
  explanation.rank = plan.run().rank;
  explanation.lineup = line_up(snapshot, explanation.real, plan);
  explanation.agrees = explanation.lineup.distance() <= explanation.real.active_bytes / kAgrees;
  if (!explanation.agrees) try_settings(explanation, plans, snapshot);
  return explanation;
}

}  // namespace loom::explain
