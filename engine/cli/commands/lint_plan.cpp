#include "engine/cli/commands/lint_plan.h"

#include <fmt/core.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/plan_profile.h"
#include "engine/cli/words/model_flags.h"
#include "engine/core/error.h"
#include "engine/dialects/hub_models.h"
#include "engine/plan/plan_search.h"
#include "models/graph/graph_file.h"
#include "models/hub/model_hub.h"
#include "models/hub/model_source.h"

namespace loom::cli {
namespace {

using dialects::Finding;
using dialects::Level;

PlanArguments plan_of(const std::string& file, int world, const LintArguments& arguments) {
  std::vector<std::string> words = {"shardloom", "plan", file, "--world-size", std::to_string(world)};
  if (!arguments.model.empty()) words.insert(words.end(), {"--model-config", arguments.model});
  if (!arguments.model_graph.empty()) words.insert(words.end(), {"--model-graph", arguments.model_graph});
  if (!arguments.device.empty()) words.insert(words.end(), {"--device", arguments.device});
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return std::get<PlanArguments>(
      parse_arguments(static_cast<int>(argv.size()), argv.data(), {.cores = 1}, dialects::hub_models()));
}

// A recorded model has the lengths that it was recorded with.
void shorten(job::Job& job) {
  if (job.model.model_graph) {
    const models::GraphFile file(*job.model.model_graph);
    const auto tokens = file.symbols().find("S");
    if (tokens != file.symbols().end()) job.data.seq_length = static_cast<int>(tokens->second.recorded);
    return;
  }
  const auto longest = models::ModelHub::global().facts(models::configuration_of(job.model)).longest_sequence;
  if (longest > 0 && longest < job.data.seq_length) job.data.seq_length = static_cast<int>(longest);
}

// With --device the plan in its memory, where a step that does not fit is an error; else one without that limit.
plan::CheckedEstimate checked(const job::Job& job, const LintArguments& arguments,
                              const virtual_time::HardwareProfile& profile) {
  const train::PretrainCallbacks callbacks = hub_callbacks(job);
  if (!arguments.device.empty()) return plan::PlanSearch(job, callbacks, profile).check();
  return {plan::estimate_step(job, callbacks, profile, plan::Capacity::kLifted), std::nullopt, {}};
}

std::string text_of(const plan::CheckedEstimate& checked) {
  std::string text = *checked.out_of_memory;
  for (const plan::Remedy& remedy : checked.remedies) text += fmt::format("; it fits with {}", remedy.change);
  return text;
}

}  // namespace

std::vector<Finding> plan_findings(const std::string& file, const dialects::PlanOfFile& of_file,
                                   const LintArguments& arguments) {
  std::vector<Finding> findings;
  const auto add = [&](Level level, std::string_view rule, std::string_view text) {
    findings.push_back(dialects::finding_of(file, level, rule, text));
  };
  try {
    PlanArguments plan = plan_of(file, of_file.world, arguments);
    if (!of_file.has_length) shorten(plan.train);
    check_model_flags(plan.train.model);
    const auto planned = checked(plan.train, arguments, plan_profile(plan.device));
    for (const std::string& warning : planned.plan.warnings) add(Level::kWarning, dialects::kPlanWarns, warning);
    if (planned.out_of_memory) add(Level::kError, dialects::kDoesNotFit, text_of(planned));
  } catch (const OutOfMemoryError& error) {
    add(Level::kError, dialects::kDoesNotFit, error.what());
  } catch (const ConfigError& error) {
    add(Level::kError, dialects::kJobRefused, error.what());
  }
  return findings;
}

}  // namespace loom::cli
