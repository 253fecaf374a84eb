#include "engine/train/job.h"

#include "engine/comm/launch.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rng.h"
#include "engine/device/device.h"
#include "engine/nn/init.h"
#include "engine/train/inputs.h"
#include "engine/train/sampling.h"
#include "engine/train/trainer.h"
#include "models/decoder.h"
#include "models/generation.h"
#include "models/hf_folder.h"

namespace loom::train {
namespace {

void describe(const TrainArguments& arguments, const TrainingInputs& inputs, Trainer& trainer, std::ostream& out) {
  out << fmt::format(
      "{} of {} parameters on {} rank{}; {} held out of {} bytes of text\n", architecture(inputs.model.family),
      trainer.model().parameter_count(), arguments.ranks, arguments.ranks == 1 ? "" : "s",
      inputs.data.held_out ? inputs.data.held_out->stream_bytes() : 0,
      inputs.data.train.stream_bytes() + (inputs.data.held_out ? inputs.data.held_out->stream_bytes() : 0));
  if (!inputs.fsdp2) return;
  for (const std::string& warning : inputs.fsdp2->warnings) logger().warn("{}", warning);
  out << sharding::describe_groups(trainer.model(), inputs.fsdp2->written_as);
  if (inputs.fsdp2->recomputed.empty()) return;
  out << fmt::format("{} of the modules recomputed in backward, {}\n", inputs.fsdp2->recomputed.size(),
                     inputs.fsdp2->use_reentrant ? "reentrant" : "not reentrant");
}

void train_rank(const TrainArguments& arguments, const TrainingInputs& inputs, RankContext& context, comm::World& world,
                std::ostream& out) {
  set_up_rank(context, arguments);
  Trainer trainer(arguments, inputs, world);
  const bool first = context.rank() == 0;
  if (first) describe(arguments, inputs, trainer, out);
  trainer.run(out);
  if (arguments.save) {
    trainer.save(*arguments.save);
    if (first) out << fmt::format("model written to {}\n", arguments.save->string());
  }
  if (arguments.sample_bytes > 0) {
    const std::string text = trainer.sample(arguments.prompt, arguments.sample_bytes);
    if (first) out << "--- sample ---\n" << text << "\n--------------\n";
  }
}

}  // namespace

void run_train(const TrainArguments& arguments, std::ostream& out) {
  const TrainingInputs inputs = read_inputs(arguments);
  const comm::CommOptions options{std::chrono::minutes(arguments.distributed_timeout_minutes)};
  const comm::RankMain main = [&](RankContext& context, comm::World& world) {
    train_rank(arguments, inputs, context, world, out);
  };
  if (comm::launched_by_mpi()) {
    comm::run_mpi_rank(options, main);
  } else {
    comm::run_ranks(arguments.ranks, options, main);
  }
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
  std::vector<std::int32_t> prompt;
  for (const char c : arguments.prompt) prompt.push_back(static_cast<unsigned char>(c));
  const std::uint64_t key = stream_key(arguments.seed, "generate");
  const SamplingOptions sampling{.temperature = arguments.temperature, .top_k = arguments.top_k};
  out << arguments.prompt << std::flush;
  const models::Generation generation = models::generate(
      *model, prompt,
      {.max_new_tokens = arguments.max_new_tokens,
       .max_positions = config.max_position_embeddings,
       .end_token_ids = {}},
      [&](std::span<const float> logits, std::int64_t position) {
        return choose_token(logits, sampling, key, static_cast<std::uint64_t>(position));
      },
      [&](std::int32_t token) { out << static_cast<char>(token) << std::flush; });
  out << "\n";
  if (!generation.message.empty()) logger().warn("{}", generation.message);
}

}  // namespace loom::train
