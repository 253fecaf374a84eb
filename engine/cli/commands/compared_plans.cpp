#include "engine/cli/commands/compared_plans.h"

#include <nlohmann/json.hpp>

#include "engine/cli/commands/planned_device.h"
#include "engine/cli/exit_status.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/cli/outputs.h"
#include "engine/cli/words/model_flags.h"
#include "engine/core/wrapped.h"
#include "engine/io/atomic_file.h"
#include "engine/plan/expert_load.h"
#include "engine/plan/plan_compare.h"

namespace loom::cli {
namespace {

plan::NamedEstimate planned(const PlanArguments& given, const std::string& file,
                            const train::PretrainCallbacks& callbacks) {
  PlanArguments arguments = given;
  const virtual_time::HardwareProfile profile = planned_device(given, arguments).profile;
  if (given.expert_load) arguments.train.parallel.expert_load = plan::read_expert_load(*given.expert_load);
  plan::PlanSearch search(arguments.train, callbacks, profile, {given.micro_batch_size, given.global_batch_size});
  plan::NamedEstimate named{.name = file, .checked = search.check()};
  if (given.tokens) {
    named.checked.plan.training = plan::training_cost(named.checked.plan, {*given.tokens, given.price_per_device_hour});
  }
  return named;
}

// What the flags and the file of one plan have to say before it.
std::string notes_of(const char* letter, const PlanArguments& arguments) {
  std::string text;
  for (const auto& lines : {arguments.train.written.told, check_model_flags(arguments.train.model)}) {
    for (const std::string& line : lines) text += wrapped(fmt::format("{}: {}\n", letter, line), 4);
  }
  return text;
}

}  // namespace

int run_compared_plans(const PlanArguments& arguments, const train::PretrainCallbacks& a,
                       const train::PretrainCallbacks& b, std::ostream& out) {
  const PlanArguments &job_a = arguments.compared.front(), &job_b = arguments.compared.back();
  const std::string notes = notes_of("A", job_a) + notes_of("B", job_b);
  warn_of_flags(job_a.train.written.without_effect);
  for (const PlanArguments& job : arguments.compared) open_outputs(job);
  const plan::ComparedEstimates compared{planned(job_a, arguments.compare.front(), a),
                                         planned(job_b, arguments.compare.back(), b)};
  std::string text = notes;
  nlohmann::ordered_json json = to_json(compared);
  if (!job_a.what_if.empty()) {
    const plan::WhatIfEstimate what_if{.scaled = job_a.what_if, .figures = {}};
    text += to_text(what_if);
    json["what_if"] = to_json(what_if);
  }
  const bool json_only = arguments.json && *arguments.json == "-";
  out << (json_only ? json.dump(1) + "\n" : text + to_text(compared));
  if (arguments.json && !json_only) io::write_text(*arguments.json, json.dump(1) + "\n");
  return compared.fits() ? 0 : kExitDoesNotFit;
}

}  // namespace loom::cli
