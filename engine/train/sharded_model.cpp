#include "engine/train/sharded_model.h"

#include "engine/core/error.h"
#include "models/hf/hf_folder.h"
#include "models/mixin/activation_swap.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {
namespace {

// Each fp32 weight rounded to bf16 and back, as --downcast-to-bf16 asks.
void round_to_bf16(nn::Module& model) {
  for (const Tensor& parameter : model.parameters()) {
    if (parameter.dtype() != DType::kF32) continue;
    const Tensor rounded = Tensor::host(parameter.shape(), DType::kBF16, "rounded");
    rounded.copy_from(parameter);
    parameter.copy_from(rounded);
  }
}

}  // namespace

void shard_and_fill(nn::Module& model, const std::optional<io::HfWeights>& weights, const TrainSections& arguments,
                    const TrainingInputs& inputs, comm::World& world) {
  models::WeightSource source{.seed = arguments.data.seed};
  if (weights) {
    source.load = [&](nn::Module& filled) {
      models::load_weights(filled, *weights);
      if (arguments.model.downcast_to_bf16) round_to_bf16(filled);
    };
  }
  if (!inputs.fsdp2_config) {
    sharding::recompute_modules(models::sharded_module(model), inputs.recomputed, models::recompute_module);
    models::swap_activations(models::sharded_module(model), {}, arguments.swap);
    return models::init_on_device(model, source);
  }
  if (!models::fully_shard(model, world, *inputs.fsdp2_config,
                           {gather_layout(arguments.parallel, arguments.kernels.set), source, arguments.swap,
                            waits_in_backward(arguments.optimizer, arguments.kernels.set)})) {
    config_error(
        "fully_shard of {} returned false, so nothing is sharded; shard there, or train without "
        "--use-torch-fsdp2",
        model.type_name());
  }
}

}  // namespace loom::train
