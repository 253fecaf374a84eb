#include "engine/cli/commands/weights_command.h"

#include <nlohmann/json.hpp>

#include "engine/cli/commands/planned_device.h"
#include "engine/cli/exit_status.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/cli/outputs.h"
#include "engine/core/error.h"
#include "engine/core/wrapped.h"
#include "engine/io/atomic_file.h"
#include "engine/plan/weights_plan.h"

namespace loom::cli {
namespace {

void check(const PlanArguments& a) {
  const std::pair<bool, std::string_view> refused[] = {
      {a.sweep, "--sweep"},
      {a.fit != PlanArguments::Fit::kNothing, "--fit"},
      {a.trace.has_value(), "--trace"},
      {a.train.report.path.has_value(), "--report"},
      {a.write_config.has_value(), "--write-config"},
      {a.expert_load.has_value(), "--expert-load"},
      {a.tokens.has_value(), "--tokens"},
      {a.fp8_recipe.has_value(), "--fp8-recipe"},
  };
  for (const auto& [is_set, flag] : refused) {
    if (!is_set) continue;
    config_error(
        "{} needs the activations and the time of a step, which --model-weights does not know; remove it, or "
        "use --model-config",
        flag);
  }
}

}  // namespace

int run_weights(const PlanArguments& given, std::ostream& out) {
  check(given);
  warn_of_flags(given.train.written.without_effect);
  PlanArguments arguments = given;
  const virtual_time::HardwareProfile profile = planned_device(given, arguments).profile;
  open_outputs(given);
  const plan::WeightsPlan plan = plan::plan_weights(arguments.train, profile);
  const bool json_only = arguments.json && *arguments.json == "-";
  if (!json_only) {
    for (const std::string& line : given.train.written.told) out << wrapped(line + "\n", 4);
  }
  out << (json_only ? to_json(plan).dump(1) + "\n" : to_text(plan));
  if (arguments.json && !json_only) io::write_text(*arguments.json, to_json(plan).dump(1) + "\n");
  return plan.fits() ? 0 : kExitDoesNotFit;
}

}  // namespace loom::cli
