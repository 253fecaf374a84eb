#include "engine/talk/decoder_ranks.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/make_rank.h"
#include "engine/train/same_job.h"
#include "models/hf/folder_files.h"
#include "models/hf/hf_folder.h"
#include "models/hub/model_hub.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::talk {
namespace {

constexpr const char* kRotaryLayers = "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n";
constexpr const char* kTextLayers = "sharding_size: auto\nsub_modules_to_wrap: [\"model.language_model.layers.{*}\"]\n";
constexpr const char* kGpt2Layers = "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n";

models::LoraOptions adapters_of(const std::filesystem::path& folder) {
  models::LoraOptions options = models::AdapterFolder(folder).options();
  options.where = fmt::format("--lora-load {}", escaped(folder.string()));
  return options;
}

}  // namespace

models::SamplingOptions sampling_of(const DecodingArguments& arguments) {
  return {.temperature = arguments.temperature.value_or(0),
          .top_k = arguments.top_k,
          .top_p = arguments.top_p,
          .min_p = arguments.min_p,
          .repetition_penalty = arguments.repetition_penalty};
}

DecoderRanks::DecoderRanks(const DecodingArguments& arguments, const models::DecoderConfig& config)
    : arguments_(arguments), config_(config), weights_(arguments.model_dir) {
  if (arguments.lora_load) lora_ = adapters_of(*arguments.lora_load);
  const auto model = build();
  models::check_weights(*model, weights_);
  if (lora_) models::check_adapter(*model, models::AdapterFolder(*arguments.lora_load));
  about_ = fmt::format("{} of {} parameters{}", model->type_name(), model->parameter_count(),
                       arguments.ranks == 1 ? "" : fmt::format(" on {} ranks", arguments.ranks));
}

std::string DecoderRanks::about() const { return about_; }

std::shared_ptr<nn::Module> DecoderRanks::build() const {
  auto model = models::ModelHub::global().build(arguments_.model_dir);
  if (lora_) models::add_lora(*model, *lora_);
  model->eval();
  return model;
}

void DecoderRanks::fill(nn::Module& model, comm::World& world) const {
  const models::WeightSource source{.load = [&](nn::Module& filled) { models::load_weights(filled, weights_); }};
  if (world.size() == 1) return models::init_on_device(model, source);
  const bool gpt2 = config_.family == models::DecoderFamily::kGpt2;
  const bool in_multimodal = model.find("model.language_model") != nullptr;
  const char* const layers = gpt2 ? kGpt2Layers : in_multimodal ? kTextLayers : kRotaryLayers;
  models::fully_shard(model, world, sharding::parse_fsdp2_config(layers, "generate"), {.weights = source});
}

std::vector<comm::SaidEntry> DecoderRanks::entries(std::vector<comm::SaidEntry> same) const {
  const auto add = [&](std::string key, const auto& value) {
    same.push_back({std::move(key), fmt::format("{}", value)});
  };
  const DecodingArguments& a = arguments_;
  add("--max-new-tokens", a.max_new_tokens.value_or(0));
  add("--temperature", a.temperature.value_or(0));
  add("--top-k", a.top_k);
  add("--top-p", a.top_p);
  add("--min-p", a.min_p);
  add("--repetition-penalty", a.repetition_penalty);
  add("--seed", a.seed);
  for (const std::string& token : a.add_eos_token) same.push_back({"--add-eos-token", escaped(token), true});
  for (const std::string& word : a.stop_words) same.push_back({"--stop-words", escaped(word), true});
  add("config.json", escaped(models::file_text(a.model_dir / "config.json")));
  train::add_weights(same, weights_);
  if (a.lora_load) train::add_adapter(same, models::AdapterFolder(*a.lora_load));
  return same;
}

void DecoderRanks::run(std::vector<comm::SaidEntry> same, std::chrono::milliseconds patience, const Main& main) const {
  const comm::CommOptions options{patience};
  const launch::Start start = launch::Start::detect();
  const auto job = start.ranks_are_processes() ? entries(std::move(same)) : std::vector<comm::SaidEntry>{};
  const launch::RankMain of_rank = [&](RankContext& context, comm::World& world) {
    if (start.ranks_are_processes() && world.size() > 1) {
      comm::check_same_entries(job, *world.everyone(),
                               {.tag = "agreement on the text",
                                .differ = "ranks do not make the same text",
                                .advice = "start every rank with the same flags and model"});
    }
    nn::make_rank(context, {.compute_threads = arguments_.compute_threads});
    const auto model = build();
    fill(*model, world);
    models::GenerationSession session(*model, config_);
    main(session, world);
  };
  launch::run(start, arguments_.ranks, options, of_rank);
}

}  // namespace loom::talk
