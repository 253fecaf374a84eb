#include "engine/train/plan_job.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/nn/functional.h"
#include "engine/tensor/io/atomic_file.h"
#include "engine/train/device_profiles.h"
#include "engine/train/plan_output.h"
#include "engine/train/plan_trace.h"
#include "engine/train/planner.h"
#include "models/model_hub.h"

namespace loom::train {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

Batch token_batch(const TrainArguments& arguments) {
  const Shape shape{arguments.micro_batch_size, arguments.seq_length};
  const Tensor ids = Tensor::empty(shape, DType::kI32, device::MemCategory::kActivation, "input_ids");
  const Tensor targets = Tensor::empty(shape, DType::kI32, device::MemCategory::kActivation, "targets");
  return {{{"input_ids", ids}, {"targets", targets}}};
}

ForwardResult forward_step(DataIterator& data, nn::Module& model) {
  const Batch batch = data.next();
  const auto loss_func = [targets = batch["targets"]](const nn::Value& logits) {
    return nn::functional::cross_entropy(logits, targets);
  };
  return {model(batch["input_ids"]), loss_func};
}

}  // namespace

PretrainCallbacks plan_callbacks(const TrainArguments& arguments) {
  const fs::path config = arguments.init_from_hf_path ? *arguments.init_from_hf_path : *arguments.model_config;
  PretrainCallbacks callbacks;
  callbacks.train_valid_test_datasets_provider = [](const TrainArguments& asked) {
    return DataLoaders{.train = [&asked](std::span<const std::int64_t>) { return token_batch(asked); }};
  };
  callbacks.model_provider = [config](const TrainArguments&) { return models::ModelHub::global().build(config); };
  callbacks.forward_step = forward_step;
  return callbacks;
}

int run_plan(const PlanArguments& arguments, std::ostream& out) {
  const device::HardwareProfile profile = find_profile(arguments.device);
  const StepPlan plan = plan_step(arguments.train, plan_callbacks(arguments.train), profile, Capacity::kLifted);
  const bool json_only = arguments.json && *arguments.json == "-";
  if (json_only) {
    out << to_json(plan).dump(1) << "\n";
  } else {
    out << to_text(plan);
    if (arguments.json) write_text(*arguments.json, to_json(plan).dump(1) + "\n");
  }
  if (arguments.trace) write_text(*arguments.trace, to_perfetto(plan));
  return plan.memory.fits() ? 0 : kExitDoesNotFit;
}

}  // namespace loom::train
