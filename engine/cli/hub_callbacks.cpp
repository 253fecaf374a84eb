#include "engine/cli/hub_callbacks.h"

#include <nlohmann/json.hpp>

#include "engine/cli/text_data.h"
#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/io/json_text.h"
#include "engine/train/preference_step.h"
#include "engine/train/reward_step.h"
#include "models/decoder/reward_model.h"
#include "models/hf/folder_files.h"
#include "models/hf/hf_folder.h"
#include "models/hub/model_hub.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kByteVocab = 256;

const std::filesystem::path& model_path(const models::ModelOptions& model) {
  return model.init_from_hf_path ? *model.init_from_hf_path : *model.model_config;
}

std::shared_ptr<nn::Module> build_model(const data::DataOptions& data, const models::ModelOptions& model_options) {
  const models::ConfigReader config = models::ConfigReader::load(model_path(model_options));
  auto model = models::ModelHub::global().build(config);
  models::freeze(*model, config);
  if (config.strict()) config.refuse_unread();
  return data.stage == data::Stage::kOrm ? models::make_reward_model(model) : model;
}

void check_takes_data(const models::ModelFacts& facts, const data::DataOptions& data_options,
                      const models::ModelOptions& model_options) {
  const bool bytes = data::data_kind(data_options) == data::DataKind::kBytes;
  if (bytes) {
    models::refuse_unread_tokenizer(model_path(model_options), data_options.bytes_as_tokens, "the data",
                                    "make token ids of it with shardloom preprocess, or ");
  }
  if (bytes && facts.vocab_size > 0 && facts.vocab_size < kByteVocab) {
    config_error("vocab_size is {}, but bytes need {}; use a model with vocab_size: {} or more", facts.vocab_size,
                 kByteVocab, kByteVocab);
  }
  if (facts.longest_sequence > 0 && data_options.seq_length > facts.longest_sequence) {
    config_error(
        "--seq-length is {}, but the longest sequence of the model is {} (max_position_embeddings, and its rope "
        "scaling where that goes beyond); use at most {}",
        data_options.seq_length, facts.longest_sequence, facts.longest_sequence);
  }
}

bool has_data(const data::DataOptions& data) { return !data::data_inputs(data).empty(); }

// Shapes without values: enough for a plan.
// `rows`: of a sample.
data::DataLoaders loaders_of_shapes(std::int64_t seq_length, std::int64_t rows) {
  return {.train = [seq_length, rows](std::span<const std::int64_t> samples) {
    const Shape shape{rows * static_cast<std::int64_t>(samples.size()), seq_length};
    return data::Batch{{{"input_ids", Tensor::meta(shape, DType::kI32, "input_ids")},
                        {"targets", Tensor::meta(shape, DType::kI32, "targets")}}};
  }};
}

// The keys of the user's file, in its order; behind them those the hub knows and the file leaves out. A folder's
// config.json is the user's as it is.
std::string config_to_save(const models::ModelOptions& model, const std::string& described) {
  const std::filesystem::path& path = model_path(model);
  if (std::filesystem::is_directory(path)) return models::file_text(path / "config.json");
  if (path.extension() != ".json") return described;
  auto config = io::parse_ordered_json(models::file_text(path), path.string());
  const auto facts = nlohmann::ordered_json::parse(described);
  for (const auto& [key, value] : facts.items()) {
    if (!config.contains(key)) config[key] = value;
  }
  return config.dump(2) + "\n";
}

bool is_tied(const std::string& config_json) {
  const auto json = nlohmann::ordered_json::parse(config_json);
  const auto& holder = json.contains("text_config") ? json["text_config"] : json;
  return holder.value("tie_word_embeddings", false);
}

std::optional<std::int64_t> padding_id(const data::TokenIds& ids) {
  if (ids.pad >= 0) return ids.pad;
  return ids.eod >= 0 ? std::optional<std::int64_t>(ids.eod) : std::nullopt;
}

data::ForwardStep forward_step_of(const data::DataOptions& data, const train::ObjectiveOptions& objective,
                                  const data::TokenIds& ids) {
  if (data.stage == data::Stage::kOrm) return train::outcome_reward_step();
  if (data.stage == data::Stage::kPrm) return train::process_reward_step(ids.rewards);
  return data.is_pairwise_dataset ? train::preference_step(objective.preference) : data::next_token_step;
}

std::string loss_unit_of(const data::DataOptions& data) {
  if (data.is_pairwise_dataset) return "a pair";
  if (data.stage == data::Stage::kPrm) return "nats per label";
  return data::data_kind(data) == data::DataKind::kBytes ? "nats per byte" : "nats per token";
}

// Without data nothing is computed: that there are labels is enough.
data::TokenIds ids_without_data(const data::DataOptions& data) {
  data::TokenIds ids;
  ids.rewards.resize(data.reward_tokens.size());
  return ids;
}

void save(const std::filesystem::path& folder, const data::DataOptions& data, const models::ModelOptions& model,
          const std::vector<std::pair<std::string, Tensor>>& tensors, const data::TokenIds& ids) {
  const bool untied = model.untie_embeddings_and_output_weights;
  const std::string described = models::ModelHub::global().facts(model_path(model)).config_json;
  std::string config =
      models::edited_config(config_to_save(model, described), {.untied = untied, .dtype = models::main_dtype(tensors)});
  if (data.stage == data::Stage::kOrm) config = models::reward_config(config, padding_id(ids));
  const auto experts = model.init_from_hf_path ? models::expert_spelling(io::HfWeights(*model.init_from_hf_path))
                                               : models::ExpertSpelling::kPerExpert;
  models::write_hf_folder(folder, config, !untied && is_tied(described), tensors, experts);
  models::carry_files(model_path(model), folder);
  if (const auto tokenizer = tokenizer_folder(data, model)) models::carry_files(*tokenizer, folder);
}

}  // namespace

train::PretrainCallbacks hub_callbacks(const train::TrainSections& arguments) {
  train::PretrainCallbacks callbacks;
  callbacks.model_provider = [](const train::TrainArguments& asked) {
    return build_model(asked.job.data, asked.job.model);
  };
  const bool prefers = arguments.data.is_pairwise_dataset && arguments.data.stage != data::Stage::kOrm;
  callbacks.has_reference_model =
      prefers && arguments.objective.preference.has_reference() && !arguments.objective.ref_logps_cache;
  callbacks.loss_unit = loss_unit_of(arguments.data);
  // Read here: a model that the hub does not know, or a broken file, is the first thing that is said.
  data::TokenIds ids = ids_without_data(arguments.data);
  if (has_data(arguments.data)) {
    const models::ModelFacts facts = models::ModelHub::global().facts(model_path(arguments.model));
    check_takes_data(facts, arguments.data, arguments.model);
    ids = text_ids(arguments, facts.vocab_size);
    if (arguments.checkpoint.save)
      config_to_save(arguments.model, facts.config_json);  // what cannot be saved is said before training
  }
  callbacks.forward_step = forward_step_of(arguments.data, arguments.objective, ids);
  callbacks.save_model = [ids](const auto& folder, const auto& asked, const auto& tensors) {
    save(folder, asked.job.data, asked.job.model, tensors, ids);
  };
  callbacks.train_valid_test_datasets_provider = [ids](const train::TrainArguments& asked) {
    return has_data(asked.data) ? text_data_loaders(asked.job.data, asked.job.schedule, ids)
                                : loaders_of_shapes(asked.seq_length, asked.data.is_pairwise_dataset ? 2 : 1);
  };
  return callbacks;
}

}  // namespace loom::cli
