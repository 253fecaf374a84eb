#include "engine/cli/commands/plan_command.h"

#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/cli/adaptive_run.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/cli/outputs.h"
#include "engine/cli/words/model_flags.h"
#include "engine/core/wrapped.h"
#include "engine/io/atomic_file.h"
#include "engine/observe/report_configuration.h"
#include "engine/observe/report_page.h"
#include "engine/observe/report_step.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_search.h"
#include "engine/plan/plan_trace.h"
#include "engine/plan/smart_swap.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::cli {
namespace {

namespace fs = std::filesystem;

void write_plan_report(const PlanArguments& arguments, nlohmann::ordered_json plan, const plan::PlannedRun& run) {
  plan["report"] = "plan";
  observe::add_step(plan, {run.recording, run.times});
  plan["configuration"] =
      observe::configuration_json(arguments.train.model, arguments.train.parallel, arguments.train.report,
                                  {{"--device", virtual_time::find_profile_file(arguments.device)}});
  observe::write_report(*arguments.train.report.path, plan);
}

// The smallest world as the search counts: device by device up to a node, then by whole nodes.
std::string world_text(int world, const virtual_time::HardwareProfile& profile) {
  const auto node = static_cast<int>(profile.devices_per_node());
  const std::string devices = fmt::format("{} device{}", world, world == 1 ? "" : "s");
  if (node == 1) return devices;
  if (world < node) return fmt::format("{}, of one node of {}", devices, node);
  const int nodes = world / node;
  return fmt::format("{}, {} whole node{} of {} (beyond one node, only whole nodes are tried)", devices, nodes,
                     nodes == 1 ? "" : "s", node);
}

}  // namespace

int run_plan(const PlanArguments& given, const train::PretrainCallbacks& callbacks, std::ostream& out) {
  check_model_flags(given.train.model, given.train.written);
  const bool json_only = given.json && *given.json == "-";
  for (const std::string& line : given.train.written.told) {
    if (!json_only) out << line << "\n";
  }
  warn_of_flags(given.train.written.without_effect);
  const virtual_time::HardwareProfile profile = virtual_time::find_profile(given.device);
  open_outputs(given);
  PlanArguments arguments = given;
  std::optional<plan::SmartSwap> smart_swap;
  if (given.train.swap.smart_swap) {
    smart_swap = plan::choose_swaps(given.train, callbacks, profile,
                                    plan::swap_budget(given.train.memory, given.train.swap, profile));
    arguments.train.swap.smart_swap_chosen = smart_swap->tensors();
  }
  const auto adaptive = choose_modes(arguments.train, callbacks, profile, true);
  plan::PlanSearch search(
      arguments.train, callbacks, profile,
      {.micro_batch_size = arguments.micro_batch_size, .global_batch_size = arguments.global_batch_size});
  const auto show = [&](const auto& result) {
    nlohmann::ordered_json json = to_json(result);
    if (smart_swap) json["smart_swap"] = plan::to_json(*smart_swap);
    if (adaptive) json["adaptive_recompute"] = plan::to_json(*adaptive);
    if (json_only) {
      out << json.dump(1) << "\n";
      return;
    }
    out << to_text(result);
    if (smart_swap) out << "\n" << plan::to_text(*smart_swap);
    if (adaptive) out << "\n" << plan::to_text(*adaptive);
    if (arguments.json) io::write_text(*arguments.json, json.dump(1) + "\n");
  };
  const auto trace = [&](const plan::StepEstimate& plan) {
    if (arguments.trace) io::write_text(*arguments.trace, plan::to_perfetto(plan));
  };
  const auto report = [&](const plan::StepEstimate& plan, const nlohmann::ordered_json& json) {
    if (arguments.train.report.path) write_plan_report(arguments, json, plan.run);
  };
  if (adaptive) {
    show(adaptive->chosen);
    trace(adaptive->chosen);
    report(adaptive->chosen, to_json(adaptive->chosen));
    return 0;
  }
  if (arguments.fit != PlanArguments::Fit::kNothing) {
    const bool micro_batch = arguments.fit == PlanArguments::Fit::kMicroBatch;
    const auto fit = micro_batch ? search.largest_micro_batch() : search.smallest_world();
    if (!json_only) {
      out << (micro_batch ? fmt::format("the largest micro-batch: {}\n", fit.choice.micro_batch)
                          : wrapped("the smallest world: " + world_text(fit.choice.world, profile) + "\n", 4));
    }
    show(fit.plan);
    trace(fit.plan);
    report(fit.plan, to_json(fit.plan));
    return 0;
  }
  if (arguments.sweep) {
    const auto sweep = search.sweep();
    show(sweep);
    if (arguments.train.report.path || arguments.trace) {
      const plan::CheckedEstimate checked = search.check();
      trace(checked.plan);
      nlohmann::ordered_json json = to_json(checked);
      json.update(to_json(sweep));
      report(checked.plan, json);
    }
    return sweep.empty() ? kExitDoesNotFit : 0;
  }
  const plan::CheckedEstimate checked = search.check();
  show(checked);
  trace(checked.plan);
  report(checked.plan, to_json(checked));
  return checked.out_of_memory ? kExitDoesNotFit : 0;
}

}  // namespace loom::cli
