#include "engine/train/inputs.h"

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/train/recompute_flags.h"
#include "models/hf/hf_folder.h"
#include "models/hf/transformers_model.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {
namespace {

void check_callbacks(const PretrainCallbacks& callbacks) {
  if (!callbacks.train_valid_test_datasets_provider || !callbacks.model_provider || !callbacks.forward_step) {
    config_error("pretrain() needs train_valid_test_datasets_provider, model_provider and forward_step; one is empty");
  }
}

// The default of 1 is for those who know it; who leaves the key out wants shards.
void check_sharding_size_is_given(const sharding::Fsdp2Config& config, int ranks) {
  if (ranks == 1 || config.places.contains("sharding_size")) return;
  config_error(
      "{}: sharding_size is not given, and its default of 1 shards nothing over {} ranks; write sharding_size: auto "
      "(all ranks), or sharding_size: 1 where every rank shall hold the whole model",
      config.file_name, ranks);
}

// torch_dist cannot write an empty shard.
void check_torch_dist(nn::Module& model, const sharding::ResolvedFsdp2Config& plan,
                      const sharding::Fsdp2Config& config) {
  for (auto& [path, slot] : model.named_slots()) {
    if (slot->shard.global_shape.ndim() == 0 || slot->shard.global_shape[0] >= plan.layout.shard) continue;
    config_error(
        "{}: sharding_size is {}, but '{}' has {} row{}, and --ckpt-format torch_dist needs one a rank; write "
        "--ckpt-format torch_dcp",
        config.value_mark("sharding_size").text(), plan.layout.shard, path, slot->shard.global_shape[0],
        slot->shard.global_shape[0] == 1 ? "" : "s");
  }
}

void read_sharding(const TrainArguments& arguments, nn::Module& model, const EditConfig& edit, TrainingInputs& inputs) {
  if (!arguments.use_torch_fsdp2) {
    refuse_recompute_flags(arguments.megatron_recompute_flags, nullptr);
    if (arguments.ranks == 1) return;
    config_error("{} ranks need --use-torch-fsdp2 --fsdp2-config-path FILE; without sharding use --nproc-per-node 1",
                 arguments.ranks);
  }
  sharding::Fsdp2Config& config =
      inputs.fsdp2_config.emplace(sharding::load_fsdp2_config(*arguments.fsdp2_config_path));
  if (edit) edit(config);
  refuse_recompute_flags(arguments.megatron_recompute_flags, &config);
  inputs.fsdp2 = sharding::resolve_fsdp2(model, config, arguments.ranks, gather_layout(arguments));
  check_sharding_size_is_given(config, arguments.ranks);
  if (arguments.ckpt_format == "torch_dist") check_torch_dist(model, *inputs.fsdp2, config);
}

// Weights that the model reads by itself have one tensor for what is two parameters now.
void check_own_weights(nn::Module& model, const TrainArguments& arguments, const std::vector<models::Untied>& untied) {
  const auto* transformers = dynamic_cast<const models::TransformersModel*>(&model);
  if (untied.empty() || arguments.init_from_hf_path || transformers == nullptr || !transformers->weights()) return;
  config_error(
      "--untie-embeddings-and-output-weights: the model reads tied weights of its own; add --init-from-hf-path {}, "
      "from which both copies are read",
      transformers->weights()->folder().string());
}

}  // namespace

sharding::GatherLayout gather_layout(const TrainArguments& arguments) {
  return arguments.kernels == KernelSet::kFast ? sharding::GatherLayout::kFast : sharding::GatherLayout::kBuffered;
}

std::shared_ptr<nn::Module> provide_model(const TrainArguments& arguments, const PretrainCallbacks& callbacks,
                                          std::vector<models::Untied>* untied) {
  auto model = callbacks.model_provider(arguments);
  if (!model) config_error("model_provider returned no model");
  if (arguments.untie_embeddings_and_output_weights) {
    auto found = models::untie_embeddings_and_output_weights(models::sharded_module(*model));
    if (untied != nullptr) *untied = std::move(found);
  }
  return model;
}

TrainingInputs read_inputs(const TrainArguments& arguments, const PretrainCallbacks& callbacks,
                           const EditConfig& edit) {
  check_callbacks(callbacks);
  TrainingInputs inputs;
  // A rank of its own, for what a model's constructor puts on the device (buffers); it ends before the others start.
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Device::install(context, {});
  std::vector<models::Untied> untied;
  const auto model = provide_model(arguments, callbacks, &untied);
  nn::Module& sharded = models::sharded_module(*model);
  check_own_weights(*model, arguments, untied);
  read_sharding(arguments, sharded, edit, inputs);
  if (arguments.init_from_hf_path) {
    inputs.weights.emplace(*arguments.init_from_hf_path);
    for (const models::Untied& tie : untied) models::share_stored(*inputs.weights, tie);
    models::check_weights(sharded, *inputs.weights);
  }
  inputs.data = callbacks.train_valid_test_datasets_provider(arguments);
  if (!inputs.data.train) config_error("train_valid_test_datasets_provider returned no train loader");
  return inputs;
}

}  // namespace loom::train
