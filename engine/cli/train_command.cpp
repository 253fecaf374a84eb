#include "engine/cli/train_command.h"

#include "engine/cli/pretrain.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rng.h"
#include "engine/data/byte_batches.h"
#include "engine/device/device.h"
#include "engine/nn/init.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/generation/generation.h"
#include "models/generation/sampling.h"
#include "models/hf/hf_folder.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kByteVocab = 256;

void check_model(const models::DecoderConfig& model, const train::TrainArguments& arguments) {
  if (model.vocab_size < kByteVocab) {
    config_error("vocab_size is {}, but bytes need {}; use a model with vocab_size: {} or more", model.vocab_size,
                 kByteVocab, kByteVocab);
  }
  if (arguments.seq_length > model.max_position_embeddings) {
    config_error("--seq-length is {}, but max_position_embeddings of the model is {}; use at most {}",
                 arguments.seq_length, model.max_position_embeddings, model.max_position_embeddings);
  }
}

std::vector<std::int32_t> tokens_of(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// `count` bytes that continue the prompt, drawn with the run's seed. Collective.
std::string sample(nn::Module& model, const models::DecoderConfig& config, const ProgramArguments& arguments) {
  const std::uint64_t key = stream_key(arguments.seed, "sample");
  const models::Generation generation = models::generate(
      model, tokens_of(arguments.prompt.empty() ? "\n" : arguments.prompt),
      {.max_new_tokens = arguments.sample_bytes, .max_positions = config.max_position_embeddings, .end_token_ids = {}},
      [&](std::span<const float> logits, std::int64_t position) {
        return models::choose_token(logits, {.temperature = 0.7, .top_k = 40}, key,
                                    static_cast<std::uint64_t>(position));
      });
  std::string text;
  for (const std::int32_t token : generation.tokens) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace

void run_train(const ProgramArguments& arguments, std::ostream& out) {
  models::DecoderConfig config =
      models::load_decoder_config(arguments.init_from_hf_path ? *arguments.init_from_hf_path : *arguments.model_config);
  check_model(config, arguments);
  train::PretrainCallbacks callbacks{data::byte_data_loaders,
                                     [config](const train::TrainArguments&) { return models::build_decoder(config); },
                                     data::next_token_step};
  if (arguments.untie_embeddings_and_output_weights) config.tie_word_embeddings = false;  // from here on: when saved
  callbacks.save_model = [config](const auto& folder, const train::TrainArguments& asked, const auto& tensors) {
    const auto experts = asked.init_from_hf_path ? models::expert_spelling(io::HfWeights(*asked.init_from_hf_path))
                                                 : models::ExpertSpelling::kPerExpert;
    models::write_hf_folder(folder, config, tensors, experts);
  };
  callbacks.after_training = [config, &arguments](nn::Module& model, const train::TrainArguments&,
                                                  std::ostream& rank_out) {
    if (arguments.sample_bytes == 0) return;
    const std::string text = sample(model, config, arguments);
    rank_out << "--- sample ---\n" << text << "\n--------------\n";
  };
  callbacks.loss_unit = "nats per byte";
  pretrain(arguments, callbacks, out);
}

void run_generate(const GenerateArguments& arguments, std::ostream& out) {
  const models::DecoderConfig config = models::load_decoder_config(arguments.model_dir);
  const io::HfWeights weights(arguments.model_dir);
  const auto model = models::build_decoder(config);
  models::check_weights(*model, weights);
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Device::install(context, {});
  nn::materialize(*model);
  models::load_weights(*model, weights);
  const std::uint64_t key = stream_key(arguments.seed, "generate");
  const models::SamplingOptions sampling{.temperature = arguments.temperature, .top_k = arguments.top_k};
  out << arguments.prompt << std::flush;
  const models::Generation generation = models::generate(
      *model, tokens_of(arguments.prompt),
      {.max_new_tokens = arguments.max_new_tokens,
       .max_positions = config.max_position_embeddings,
       .end_token_ids = {}},
      [&](std::span<const float> logits, std::int64_t position) {
        return models::choose_token(logits, sampling, key, static_cast<std::uint64_t>(position));
      },
      [&](std::int32_t token) { out << static_cast<char>(token) << std::flush; });
  out << "\n";
  if (!generation.message.empty()) logger().warn("{}", generation.message);
}

}  // namespace loom::cli
