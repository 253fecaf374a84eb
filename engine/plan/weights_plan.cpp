#include "engine/plan/weights_plan.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/objective/objective.h"
#include "engine/train/inputs.h"
#include "models/stored/stored_module.h"
#include "sharding/memory.h"

namespace loom::plan {
namespace {

using device::MemCategory;
using device::MemorySample;

// Flags that change what modules compute.
void check_flags(const train::TrainSections& arguments) {
  const train::ParallelOptions& parallel = arguments.parallel;
  const std::pair<bool, std::string_view> refused[] = {
      {parallel.tensor_model_parallel_size > 1, "--tensor-model-parallel-size"},
      {parallel.context_parallel_size > 1, "--context-parallel-size"},
      {parallel.expert_model_parallel_size > 1, "--expert-model-parallel-size"},
      {parallel.pipeline.pipeline_model_parallel_size > 1, "--pipeline-model-parallel-size"},
      {arguments.model.lora.on(), "adapters (--lora-target-modules)"},
      {arguments.memory.adaptive_recompute, "--adaptive-recompute-device-swap"},
      {arguments.swap.smart_swap, "--smart-swap"},
      {objective::row_of(arguments.objective.stage).forward != objective::Forward::kNextToken, "this --stage"},
  };
  for (const auto& [is_set, what] : refused) {
    if (is_set) config_error("--model-weights does not go with {}: the modules' code is not known; remove one", what);
  }
}

// The same in the file, which stays as it is.
void check_config(sharding::Fsdp2Config& config) {
  const std::pair<int, std::string_view> sizes[] = {{config.tensor_parallel_size, "tensor_parallel_size"},
                                                    {config.expert_parallel_size, "expert_parallel_size"},
                                                    {config.context_ranks(), "context parallelism"}};
  for (const auto& [size, key] : sizes) {
    if (size == 1) continue;
    config_error("{}: {} is {}, and --model-weights does not know the code of the modules; use 1, or --model-config",
                 config.file_name, key, size);
  }
}

train::PretrainCallbacks callbacks_of(const std::filesystem::path& folder) {
  train::PretrainCallbacks callbacks;
  callbacks.model_provider = [folder](const train::TrainArguments&) { return models::stored_module(folder); };
  callbacks.train_valid_test_datasets_provider = [](const train::TrainArguments&) {
    data::DataLoaders loaders;
    loaders.train = [](std::span<const std::int64_t>) { return data::Batch{}; };
    return loaders;
  };
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    data.next();
    return data::ForwardResult{model(Tensor::empty({1}, DType::kF32)),
                               [](const nn::Value& output) { return data::Loss(output.tensor()); }};
  };
  return callbacks;
}

std::int64_t bytes_of(const MemorySample& sample, MemCategory category) { return sample.by_category[category]; }

// Of the file. Those of the schedule compare gathers with kernels, which are not known.
std::vector<std::string> warnings_of(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks) {
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks, check_config);
  return inputs.fsdp2 ? inputs.fsdp2->warnings : std::vector<std::string>{};
}

// How the memory stands where the optimizer begins: gradients are there, activations are gone.
const MemorySample& at_optimizer(const device::Recording& recording) {
  const auto is_optimizer = [&](const device::Entry& entry) {
    return entry.kind == device::EntryKind::kPhase && recording.text(entry.name) == "optimizer";
  };
  const auto phase = std::ranges::find_if(recording.entries, is_optimizer);
  const auto later =
      std::ranges::upper_bound(recording.memory, phase - recording.entries.begin(), {}, &MemorySample::entries);
  require(later != recording.memory.begin(), "the recorded step has no memory before its optimizer");
  return *(later - 1);
}

}  // namespace

WeightsPlan plan_weights(const train::TrainSections& arguments, const virtual_time::HardwareProfile& profile) {
  check_flags(arguments);
  const std::filesystem::path folder = arguments.model.model_weights.value();
  const train::PretrainCallbacks callbacks = callbacks_of(folder);
  const StepEstimate step = estimate_step(arguments, callbacks, profile, Capacity::kLifted, check_config);
  WeightsPlan plan{.folder = folder,
                   .parameters = step.parameters,
                   .trained_parameters = step.trained_parameters,
                   .mode = step.mode,
                   .device = step.device,
                   .world = step.world,
                   .micro_batches = step.micro_batches,
                   .host_bytes = step.memory.host_bytes,
                   .capacity_bytes = step.memory.capacity_bytes,
                   .groups = observe::groups_of_step(step.run().recording, step.run().times).groups,
                   .communication = step.communication,
                   .volume = step.volume,
                   .warnings = warnings_of(arguments, callbacks)};
  const MemorySample& sample = at_optimizer(step.run().recording);
  plan.shard_bytes = bytes_of(sample, sharding::kShard);
  plan.gradient_bytes = bytes_of(sample, MemCategory::kGradient);
  plan.optimizer_state_bytes = bytes_of(sample, MemCategory::kOptimizerState);
  return plan;
}

}  // namespace loom::plan
