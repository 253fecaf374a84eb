#include "engine/cli/commands/plan_command.h"

#include <algorithm>
#include <fmt/core.h>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/cli/adaptive_run.h"
#include "engine/cli/commands/chosen_config.h"
#include "engine/cli/commands/planned_device.h"
#include "engine/cli/commands/weights_command.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/cli/outputs.h"
#include "engine/cli/words/model_flags.h"
#include "engine/core/error.h"
#include "engine/core/wrapped.h"
#include "engine/io/atomic_file.h"
#include "engine/observe/report_configuration.h"
#include "engine/observe/report_page.h"
#include "engine/observe/report_step.h"
#include "engine/plan/expert_load.h"
#include "engine/plan/pipeline_split.h"
#include "engine/plan/plan_compare.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_search.h"
#include "engine/plan/plan_trace.h"
#include "engine/plan/smart_swap.h"
#include "engine/virtual_time/find_profile.h"
#include "models/hub/model_hub.h"
#include "models/hub/model_source.h"

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

// What the job asks the planner to choose before the plan, and the scaled figures of the device.
struct Chosen {
  std::optional<plan::SmartSwap> smart_swap;
  std::optional<plan::AdaptiveChoice> adaptive;
  std::optional<plan::ChosenSplit> split;
  std::optional<plan::WrittenConfig> written;
  std::optional<plan::WhatIfEstimate> what_if;
};

void add_training(plan::StepEstimate& plan, const PlanArguments& arguments) {
  if (!arguments.tokens) return;
  plan.training = plan::training_cost(plan, {*arguments.tokens, arguments.price_per_device_hour});
}

plan::CheckedEstimate check(plan::PlanSearch& search, const PlanArguments& arguments) {
  plan::CheckedEstimate checked = search.check();
  add_training(checked.plan, arguments);
  return checked;
}

// Of --fit seq-length. None: the configuration does not say, or the model is a program's own, which the hub has not.
std::optional<int> longest_sequence_of(const PlanArguments& arguments) {
  if (arguments.fit != PlanArguments::Fit::kSeqLength || !models::has_configuration(arguments.train.model)) return {};
  try {
    const auto facts = models::ModelHub::global().facts(models::configuration_of(arguments.train.model));
    if (facts.longest_sequence == 0) return {};
    return static_cast<int>(std::min<std::int64_t>(facts.longest_sequence, std::numeric_limits<int>::max()));
  } catch (const ConfigError&) {
    return {};
  }
}

plan::PlanSearch search_of(const PlanArguments& arguments, const train::PretrainCallbacks& callbacks,
                           const virtual_time::HardwareProfile& profile) {
  return {arguments.train,
          callbacks,
          profile,
          {.micro_batch_size = arguments.micro_batch_size,
           .global_batch_size = arguments.global_batch_size,
           .longest_sequence = longest_sequence_of(arguments)}};
}

// Where results go: standard output, --json, --trace, --memory-snapshot, --report.
class PlanOutput {
 public:
  PlanOutput(const PlanArguments& arguments, const Chosen& chosen, std::ostream& out)
      : arguments_(arguments), chosen_(chosen), out_(out), json_only_(arguments.json && *arguments.json == "-") {}

  // Text before the result; nothing where JSON has standard output.
  void say(const std::string& text) const {
    if (!json_only_) out_ << text;
  }
  template <class Result>
  void show(const Result& result) const {
    nlohmann::ordered_json json = to_json(result);
    if (chosen_.smart_swap) json["smart_swap"] = plan::to_json(*chosen_.smart_swap);
    if (chosen_.adaptive) json["adaptive_recompute"] = plan::to_json(*chosen_.adaptive);
    if (chosen_.split) json["pipeline_split"] = plan::to_json(*chosen_.split);
    if (chosen_.written) json["write_config"] = plan::to_json(*chosen_.written);
    add_what_if(json);
    if (json_only_) {
      out_ << json.dump(1) << "\n";
      return;
    }
    if (chosen_.what_if) out_ << plan::to_text(*chosen_.what_if);
    if (chosen_.split) out_ << plan::to_text(*chosen_.split) << "\n";
    out_ << to_text(result);
    if (chosen_.smart_swap) out_ << "\n" << plan::to_text(*chosen_.smart_swap);
    if (chosen_.adaptive) out_ << "\n" << plan::to_text(*chosen_.adaptive);
    if (chosen_.written) out_ << "\n" << plan::to_text(*chosen_.written);
    if (arguments_.json) io::write_text(*arguments_.json, json.dump(1) + "\n");
  }
  // Whether show_step() writes anything.
  bool has_files_of_step() const { return arguments_.train.report.path || arguments_.trace; }
  // Trace, memory snapshot and report.
  void show_step(const plan::StepEstimate& plan, nlohmann::ordered_json json) const {
    add_what_if(json);
    if (arguments_.trace) io::write_text(*arguments_.trace, plan::to_perfetto(plan));
    if (const auto& file = arguments_.train.report.memory_snapshot)
      io::write_text(*file, plan::to_memory_snapshot(plan));
    if (arguments_.train.report.path) write_plan_report(arguments_, json, plan.run());
  }
  void show_all(const plan::StepEstimate& plan) const {
    show(plan);
    show_step(plan, to_json(plan));
  }

 private:
  void add_what_if(nlohmann::ordered_json& json) const {
    if (chosen_.what_if) json["what_if"] = plan::to_json(*chosen_.what_if);
  }

  const PlanArguments& arguments_;
  const Chosen& chosen_;
  std::ostream& out_;
  const bool json_only_;
};

// Of a sweep, the row.
using Write = std::function<void(const plan::Candidate& candidate, std::optional<std::size_t> row)>;

int show_longest(const plan::PlanSearch& search, const PlanArguments& arguments, const PlanOutput& output,
                 const Write& write) {
  plan::LongestSequence longest = search.longest_sequence();
  add_training(longest.fit.plan, arguments);
  write(longest.fit, std::nullopt);
  output.show(longest);
  output.show_step(longest.fit.plan, to_json(longest));
  return 0;
}

int show_fit(plan::PlanSearch& search, const PlanArguments& arguments, const virtual_time::HardwareProfile& profile,
             const PlanOutput& output, const Write& write) {
  if (arguments.fit == PlanArguments::Fit::kSeqLength) return show_longest(search, arguments, output, write);
  const bool micro_batch = arguments.fit == PlanArguments::Fit::kMicroBatch;
  auto fit = micro_batch ? search.largest_micro_batch() : search.smallest_world();
  write(fit, std::nullopt);
  add_training(fit.plan, arguments);
  output.say(micro_batch ? fmt::format("the largest micro-batch: {}\n", fit.choice.micro_batch)
                         : wrapped("the smallest world: " + world_text(fit.choice.world, profile) + "\n", 4));
  output.show_all(fit.plan);
  return 0;
}

int show_sweep(plan::PlanSearch& search, const PlanArguments& arguments, const PlanOutput& output, const Write& write) {
  plan::Sweep sweep = search.sweep();
  const auto row = static_cast<std::size_t>(arguments.row);
  for (plan::Candidate& candidate : sweep.fitting) add_training(candidate.plan, arguments);
  if (row < sweep.fitting.size()) write(sweep.fitting[row], row);
  output.show(sweep);
  if (output.has_files_of_step()) {
    const plan::CheckedEstimate checked = check(search, arguments);
    nlohmann::ordered_json json = to_json(checked);
    json.update(to_json(sweep));
    output.show_step(checked.plan, json);
  }
  if (sweep.fitting.empty()) return kExitDoesNotFit;
  if (row < sweep.fitting.size()) return 0;
  config_error("--row is {}, but the sweep has {} rows; use 0 to {}", row, sweep.fitting.size(),
               sweep.fitting.size() - 1);
}

// `unscaled`: of the device as it is; null without --what-if.
int show_check(plan::PlanSearch& search, const PlanArguments& arguments, plan::PlanSearch* unscaled, Chosen& chosen,
               const PlanOutput& output) {
  const plan::CheckedEstimate checked = check(search, arguments);
  if (unscaled != nullptr) {
    chosen.what_if->figures = plan::main_figures(check(*unscaled, arguments).plan, checked.plan);
  }
  output.show(checked);
  output.show_step(checked.plan, to_json(checked));
  return checked.out_of_memory ? kExitDoesNotFit : 0;
}

}  // namespace

int run_plan(const PlanArguments& given, const train::PretrainCallbacks& callbacks, std::ostream& out) {
  if (given.train.model.model_weights) return run_weights(given, out);
  const std::vector<std::string> notes = check_model_flags(given.train.model);
  PlanArguments arguments = given;
  Chosen chosen;
  const PlanOutput output(arguments, chosen, out);
  for (const auto& lines : {given.train.written.told, notes}) {
    for (const std::string& line : lines) output.say(wrapped(line + "\n", 4));
  }
  warn_of_flags(given.train.written.without_effect);
  const auto [as_it_is, profile] = planned_device(given, arguments);
  if (!given.what_if.empty()) chosen.what_if = plan::WhatIfEstimate{.scaled = given.what_if, .figures = {}};
  open_outputs(given);
  arguments.train.memory.record_allocator = given.train.report.memory_snapshot.has_value();
  if (given.expert_load) arguments.train.parallel.expert_load = plan::read_expert_load(*given.expert_load);
  chosen.split = plan::choose_split(arguments.train, callbacks, profile);
  if (chosen.split) plan::apply(*chosen.split, arguments.train.parallel.pipeline);
  if (given.train.swap.smart_swap) {
    chosen.smart_swap =
        plan::choose_swaps(arguments.train, callbacks, profile, plan::swap_budget(arguments.train, callbacks, profile));
    arguments.train.swap.smart_swap_chosen = chosen.smart_swap->tensors();
  }
  chosen.adaptive = choose_modes(arguments.train, callbacks, profile, true);
  plan::PlanSearch search = search_of(arguments, callbacks, profile);
  if (chosen.adaptive) {
    add_training(chosen.adaptive->chosen, arguments);
    output.show_all(chosen.adaptive->chosen);
    return 0;
  }
  const Write write = [&](const plan::Candidate& candidate, std::optional<std::size_t> row) {
    if (arguments.write_config) chosen.written = write_chosen(arguments, candidate, row, profile);
  };
  if (arguments.fit != PlanArguments::Fit::kNothing) return show_fit(search, arguments, profile, output, write);
  if (arguments.sweep) return show_sweep(search, arguments, output, write);
  plan::PlanSearch unscaled = search_of(arguments, callbacks, as_it_is);
  const bool compares = chosen.what_if && !chosen.smart_swap;
  return show_check(search, arguments, compares ? &unscaled : nullptr, chosen, output);
}

}  // namespace loom::cli
