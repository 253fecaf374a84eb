#include "engine/cli/commands/train_command.h"

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/pretrain.h"
#include "engine/core/rng.h"
#include "models/generation/generation.h"
#include "models/generation/sampling.h"
#include "models/hub/model_hub.h"
#include "models/hub/model_source.h"

namespace loom::cli {
namespace {

std::vector<std::int32_t> tokens_of(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// `count` bytes that continue the prompt, drawn with the run's seed. Collective.
std::string sample(nn::Module& model, std::int64_t max_positions, const data::DataOptions& data,
                   const job::SampleOptions& sample_options) {
  const std::uint64_t key = stream_key(data.seed, "sample");
  const models::Generation generation = models::generate(
      model, tokens_of(sample_options.prompt.empty() ? "\n" : sample_options.prompt),
      {.max_new_tokens = sample_options.sample_bytes, .max_positions = max_positions, .end_token_ids = {}},
      [&](std::span<const float> logits, std::int64_t position) {
        return models::choose_token(logits, {.temperature = 0.7, .top_k = 40}, key,
                                    static_cast<std::uint64_t>(position));
      });
  std::string text;
  for (const std::int32_t token : generation.tokens) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace

void run_train(const job::Job& arguments, std::ostream& out) {
  train::PretrainCallbacks callbacks = hub_callbacks(arguments);
  const models::ModelFacts facts = models::ModelHub::global().facts(models::configuration_of(arguments.model));
  const std::int64_t max_positions =
      facts.longest_sequence > 0 ? facts.longest_sequence : std::int64_t{arguments.data.seq_length};
  callbacks.after_training = [&](nn::Module& model, const train::TrainArguments&, std::ostream& rank_out) {
    if (arguments.sample.sample_bytes == 0) return;
    rank_out << "--- sample ---\n"
             << sample(model, max_positions, arguments.data, arguments.sample) << "\n--------------\n";
  };
  pretrain(arguments, callbacks, out);
}

}  // namespace loom::cli
