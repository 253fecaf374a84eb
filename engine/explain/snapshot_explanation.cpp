#include "engine/explain/snapshot_explanation.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/explain/other_settings.h"
#include "engine/plan/plan_choice.h"

namespace loom::explain {
namespace {

using plan::PlanChoice;

constexpr std::int64_t kAgrees = 100;  // a distance of a hundredth of the peak

TriedSetting tried(const plan::ChoicePlans& plans, const PlanChoice& choice, const io::MemorySnapshot& snapshot,
                   const SnapshotPeak& real) {
  TriedSetting setting{.change = describe_keys(choice.config, plans.base().config)};
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
  for (const PlanChoice& choice : other_settings(plans)) {
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
