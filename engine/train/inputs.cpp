#include "engine/train/inputs.h"

#include "engine/core/error.h"
#include "engine/train/compose.h"
#include "models/decoder.h"
#include "models/hf_folder.h"

namespace loom::train {
namespace {

constexpr std::int64_t kByteVocab = 256;

void check_model(const models::DecoderConfig& model, const TrainArguments& arguments) {
  if (model.vocab_size < kByteVocab) {
    config_error("vocab_size is {}, but bytes need {}; use a model with vocab_size: {} or more", model.vocab_size,
                 kByteVocab, kByteVocab);
  }
  if (arguments.seq_length > model.max_position_embeddings) {
    config_error("--seq-length is {}, but max_position_embeddings of the model is {}; use at most {}",
                 arguments.seq_length, model.max_position_embeddings, model.max_position_embeddings);
  }
}

sharding::GatherLayout gather_layout(const TrainArguments& arguments) {
  return arguments.kernel_grain == KernelGrain::kFast ? sharding::GatherLayout::kFast
                                                      : sharding::GatherLayout::kBuffered;
}

}  // namespace

TrainingInputs read_inputs(const TrainArguments& arguments) {
  const models::DecoderConfig model =
      models::load_decoder_config(arguments.init_from_hf_path ? *arguments.init_from_hf_path : *arguments.model_config);
  check_model(model, arguments);
  if (!arguments.use_torch_fsdp2) refuse_recompute_flags(arguments.megatron_recompute_flags, nullptr);
  const auto shape = models::build_decoder(model);
  std::optional<sharding::Fsdp2Plan> fsdp2;
  if (arguments.use_torch_fsdp2) {
    const sharding::Fsdp2Config config = sharding::load_fsdp2_config(*arguments.fsdp2_config_path);
    refuse_recompute_flags(arguments.megatron_recompute_flags, &config);
    fsdp2 = sharding::plan_fsdp2(*shape, config, arguments.ranks, gather_layout(arguments));
  } else if (arguments.ranks > 1) {
    config_error("{} ranks need --use-torch-fsdp2 --fsdp2-config-path FILE; without sharding use --nproc-per-node 1",
                 arguments.ranks);
  }
  std::optional<io::HfWeights> weights;
  if (arguments.init_from_hf_path) {
    weights.emplace(*arguments.init_from_hf_path);
    models::check_weights(*shape, *weights);
  }
  ByteData data = open_byte_data({.paths = arguments.data_path,
                                  .seq_length = arguments.seq_length,
                                  .held_out_fraction = arguments.held_out_fraction,
                                  .seed = arguments.seed});
  return {model, std::move(weights), std::move(fsdp2), std::move(data)};
}

}  // namespace loom::train
