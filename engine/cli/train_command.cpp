#include "engine/cli/train_command.h"

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/pretrain.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rng.h"
#include "engine/device/device.h"
#include "engine/nn/init.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/generation/generation.h"
#include "models/generation/sampling.h"
#include "models/hf/folder_files.h"
#include "models/hf/hf_folder.h"
#include "models/hub/model_hub.h"

namespace loom::cli {
namespace {

std::vector<std::int32_t> tokens_of(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// `count` bytes that continue the prompt, drawn with the run's seed. Collective.
std::string sample(nn::Module& model, std::int64_t max_positions, const ProgramArguments& arguments) {
  const std::uint64_t key = stream_key(arguments.seed, "sample");
  const models::Generation generation =
      models::generate(model, tokens_of(arguments.prompt.empty() ? "\n" : arguments.prompt),
                       {.max_new_tokens = arguments.sample_bytes, .max_positions = max_positions, .end_token_ids = {}},
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
  train::PretrainCallbacks callbacks = hub_callbacks(arguments);
  const models::ModelFacts facts = models::ModelHub::global().facts(
      arguments.init_from_hf_path ? *arguments.init_from_hf_path : *arguments.model_config);
  const std::int64_t max_positions =
      facts.max_position_embeddings > 0 ? facts.max_position_embeddings : std::int64_t{arguments.seq_length};
  callbacks.after_training = [&](nn::Module& model, const train::TrainArguments&, std::ostream& rank_out) {
    if (arguments.sample_bytes == 0) return;
    rank_out << "--- sample ---\n" << sample(model, max_positions, arguments) << "\n--------------\n";
  };
  pretrain(arguments, callbacks, out);
}

void run_generate(const GenerateArguments& arguments, std::ostream& out) {
  models::refuse_unread_tokenizer(arguments.model_dir, arguments.bytes_as_tokens, "the prompt");
  const models::DecoderConfig config = models::load_decoder_config(arguments.model_dir);
  const std::vector<std::int32_t> prompt = tokens_of(arguments.prompt);
  const models::GenerationOptions options{
      .max_new_tokens = arguments.max_new_tokens, .max_positions = config.max_position_embeddings, .end_token_ids = {}};
  models::check_prompt(prompt, options);  // before a word of it is printed
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
      *model, prompt, options,
      [&](std::span<const float> logits, std::int64_t position) {
        return models::choose_token(logits, sampling, key, static_cast<std::uint64_t>(position));
      },
      [&](std::int32_t token) { out << static_cast<char>(token) << std::flush; });
  out << "\n";
  // All that was asked for, or the model's own end: a normal end.
  if (generation.reason == models::StopReason::kPositionsFull) logger().warn("{}", generation.message);
}

}  // namespace loom::cli
