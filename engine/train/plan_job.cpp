#include "engine/train/plan_job.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/tensor/io/atomic_file.h"
#include "engine/train/byte_batches.h"
#include "engine/train/find_profile.h"
#include "engine/train/plan_output.h"
#include "engine/train/plan_search.h"
#include "engine/train/plan_trace.h"
#include "engine/train/report_configuration.h"
#include "engine/train/report_page.h"
#include "engine/train/report_step.h"
#include "models/model_hub.h"

namespace loom::train {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void write_plan_report(const PlanArguments& arguments, nlohmann::ordered_json plan, const PlannedRun& run) {
  plan["report"] = "plan";
  add_step(plan, {*run.timeline, run.times, run.memory});
  plan["configuration"] = configuration_json(arguments.train, {{"--device", find_profile_file(arguments.device)}});
  write_report(*arguments.train.report, plan);
}

Batch token_batch(const TrainArguments& arguments) {
  const Shape shape{arguments.micro_batch_size, arguments.seq_length};
  const Tensor ids = Tensor::empty(shape, DType::kI32, device::MemCategory::kActivation, "input_ids");
  const Tensor targets = Tensor::empty(shape, DType::kI32, device::MemCategory::kActivation, "targets");
  return {{{"input_ids", ids}, {"targets", targets}}};
}

}  // namespace

PretrainCallbacks plan_callbacks(const TrainArguments& arguments) {
  const fs::path config = arguments.init_from_hf_path ? *arguments.init_from_hf_path : *arguments.model_config;
  PretrainCallbacks callbacks;
  callbacks.train_valid_test_datasets_provider = [](const TrainArguments& asked) {
    return DataLoaders{.train = [&asked](std::span<const std::int64_t>) { return token_batch(asked); }};
  };
  callbacks.model_provider = [config](const TrainArguments&) { return models::ModelHub::global().build(config); };
  callbacks.forward_step = next_token_step;
  return callbacks;
}

int run_plan(const PlanArguments& arguments, std::ostream& out) {
  const device::HardwareProfile profile = find_profile(arguments.device);
  const PretrainCallbacks callbacks = plan_callbacks(arguments.train);
  PlanSearch search(arguments.train, callbacks, profile);
  const bool json_only = arguments.json && *arguments.json == "-";
  const auto show = [&](const auto& result) {
    if (json_only) {
      out << to_json(result).dump(1) << "\n";
      return;
    }
    out << to_text(result);
    if (arguments.json) write_text(*arguments.json, to_json(result).dump(1) + "\n");
  };
  const auto trace = [&](const StepPlan& plan) {
    if (arguments.trace) write_text(*arguments.trace, to_perfetto(plan));
  };
  const auto report = [&](const StepPlan& plan, const nlohmann::ordered_json& json) {
    if (arguments.train.report) write_plan_report(arguments, json, plan.run);
  };
  if (arguments.fit != PlanArguments::Fit::kNothing) {
    const bool micro_batch = arguments.fit == PlanArguments::Fit::kMicroBatch;
    const auto fit = micro_batch ? search.largest_micro_batch() : search.smallest_world();
    if (!json_only) {
      out << fmt::format("{}: {}\n", micro_batch ? "the largest micro-batch" : "the smallest world",
                         micro_batch ? fit.choice.micro_batch : fit.choice.world);
    }
    show(fit.plan);
    trace(fit.plan);
    report(fit.plan, to_json(fit.plan));
    return 0;
  }
  if (arguments.sweep) {
    const auto sweep = search.sweep();
    show(sweep);
    if (arguments.train.report || arguments.trace) {
      const CheckedPlan checked = search.check();
      trace(checked.plan);
      nlohmann::ordered_json json = to_json(checked);
      json.update(to_json(sweep));
      report(checked.plan, json);
    }
    return sweep.empty() ? kExitDoesNotFit : 0;
  }
  const CheckedPlan checked = search.check();
  show(checked);
  trace(checked.plan);
  report(checked.plan, to_json(checked));
  return checked.out_of_memory ? kExitDoesNotFit : 0;
}

}  // namespace loom::train
