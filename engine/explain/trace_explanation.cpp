#include "engine/explain/trace_explanation.h"

#include <algorithm>
#include <iterator>

#include "engine/core/error.h"
#include "engine/core/shown_path.h"
#include "engine/explain/other_settings.h"

namespace loom::explain {
namespace {

TriedOrder tried(const plan::ChoicePlans& plans, const plan::PlanChoice& choice, const StepFigures& real) {
  TriedOrder setting{.change = describe_keys(choice.config, plans.base().config)};
  try {
    const plan::StepEstimate plan = plans.plan(choice, plan::Capacity::kLifted);
    setting.distance = events_apart(real.order, figures_of(plan.run()).order);
  } catch (const ConfigError& error) {
    setting.refused = error.what();
  }
  return setting;
}

void try_settings(TraceExplanation& explanation, const plan::ChoicePlans& plans) {
  for (const plan::PlanChoice& choice : other_settings(plans)) {
    explanation.tried.push_back(tried(plans, choice, explanation.real));
  }
  std::ranges::stable_sort(explanation.tried, {}, [](const TriedOrder& setting) {
    return std::pair(!setting.refused.empty(), setting.distance);
  });
  if (explanation.tried.empty() || !explanation.tried.front().refused.empty()) return;
  const std::size_t distance = explanation.order_distance;
  explanation.explains =
      explanation.tried.front().distance <= distance - distance / 5 && explanation.tried.front().distance < distance;
}

}  // namespace

std::size_t TraceExplanation::first_difference() const {
  const auto [mine, theirs] = std::ranges::mismatch(real.order, planned.order);
  return static_cast<std::size_t>(mine - real.order.begin());
}

bool TraceExplanation::differs_in_root() const {
  const auto is_other = [root = " " + shown_path("")](const std::string& event) { return !event.ends_with(root); };
  const auto others = [&](const std::vector<std::string>& order) {
    std::vector<std::string> events;
    std::ranges::copy_if(order, std::back_inserter(events), is_other);
    return events;
  };
  return order_distance > 0 && others(real.order) == others(planned.order);
}

TraceExplanation explain_trace(const std::filesystem::path& file, const JobOfRun& job) {
  TraceExplanation explanation{.file = file.string(), .real = figures_of(io::read_profiler_trace(file), file.string())};
  train::TrainSections arguments = job.arguments;
  arguments.memory.record_allocator = true;  // with the sites of entries
  const plan::ChoicePlans plans(arguments, job.callbacks, job.profile, job.options);
  const plan::StepEstimate plan = plans.plan(plans.base(), plan::Capacity::kLifted);
  explanation.model = plan.model;
  explanation.device = plan.device;
  explanation.rank = plan.run().rank;
  explanation.planned = figures_of(plan.run());
  if (!explanation.has_order()) return explanation;
  explanation.order_distance = events_apart(explanation.real.order, explanation.planned.order);
  if (explanation.order_distance > 0 && !explanation.differs_in_root()) try_settings(explanation, plans);
  return explanation;
}

}  // namespace loom::explain
