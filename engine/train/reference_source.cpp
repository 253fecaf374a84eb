#include "engine/train/reference_source.h"

#include "engine/train/sharded_model.h"

namespace loom::train {

objective::ReferenceSource reference_source(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                            const TrainingInputs& inputs, comm::World& world) {
  const bool computes_in_other = inputs.fsdp2_config && inputs.fsdp2_config->param_dtype;
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
          .rounds_to_bf16 = arguments.model.downcast_to_bf16,
          .computes_in = computes_in_other ? *inputs.fsdp2_config->param_dtype : DType::kF32};
}

}  // namespace loom::train
