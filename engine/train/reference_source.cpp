#include "engine/train/reference_source.h"

#include "engine/train/sharded_model.h"

namespace loom::train {

objective::ReferenceSource reference_source(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                            const TrainingInputs& inputs, comm::World& world) {
  const DType stored = arguments.model.params_dtype;
  const sharding::Fsdp2Config* config = inputs.fsdp2_config ? &*inputs.fsdp2_config : nullptr;
  return {.provide = [&] { return provide_model(arguments, callbacks); },
          .shard_and_fill =
              [&](nn::Module& model) {
                const auto& weights = inputs.reference_weights ? inputs.reference_weights : inputs.weights;
                train::shard_and_fill(model, weights, arguments, inputs, world);
              },
          .weights =
              [&](const nn::Module& model) {
                return inputs.reference_weights ? &*inputs.reference_weights : loaded_weights(inputs, model);
              },
          .rounds_to_bf16 = arguments.model.downcast_to_bf16 || stored == DType::kBF16,
          .computes_in = config != nullptr ? config->param_dtype.value_or(stored) : stored};
}

}  // namespace loom::train
