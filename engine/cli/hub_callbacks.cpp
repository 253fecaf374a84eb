#include "engine/cli/hub_callbacks.h"

#include "engine/cli/graph_callbacks.h"
#include "engine/cli/picture_data.h"
#include "engine/cli/text_data.h"
#include "engine/core/error.h"
#include "engine/io/json_text.h"
#include "engine/objective/objective.h"
#include "models/decoder/reward_model.h"
#include "models/hf/folder_files.h"
#include "models/hf/hf_folder.h"
#include "models/hub/model_hub.h"
#include "models/hub/model_source.h"
#include "models/mixin/fsdp2_mixin.h"
#include "models/mixin/multimodal_module.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kByteVocab = 256;

using objective::Head;

const objective::StageRow& stage_of(const train::TrainSections& job) { return objective::row_of(job.objective.stage); }

// Those of --mm-model, whose models have them.
void freeze_towers(nn::Module& model, const std::vector<std::string>& names) {
  if (names.empty()) return;
  auto* const multimodal = dynamic_cast<models::MultiModalModule*>(&model);
  require(multimodal != nullptr, "{} has no towers to freeze", model.type_name());
  for (const std::string& name : names) multimodal->freeze_tower(name);
}

std::shared_ptr<nn::Module> build_model(const models::ModelOptions& model_options, Head head) {
  const models::ConfigReader config = models::configuration_of(model_options);
  auto model = models::ModelHub::global().build(config);
  models::freeze(*model, config);
  freeze_towers(*model, model_options.frozen_towers);
  if (config.strict()) config.refuse_unread();
  return head == Head::kScores ? models::make_reward_model(model) : model;
}

void check_takes_data(const models::ModelFacts& facts, const data::DataOptions& data_options,
                      const models::ModelOptions& model_options) {
  const bool bytes = data::data_kind(data_options) == data::DataKind::kBytes;
  if (const auto path = models::model_path(model_options); bytes && path) {
    models::refuse_unread_tokenizer(*path, data_options.bytes_as_tokens, "the data",
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

// The keys of the user's file, in its order; behind them those the hub knows and the file leaves out. A folder's
// config.json is the user's as it is.
std::string config_to_save(const models::ModelOptions& model, const std::string& described) {
  const auto path = models::model_path(model);
  if (path && std::filesystem::is_directory(*path)) return models::file_text(*path / "config.json");
  if (!path || path->extension() != ".json") return described;
  auto config = io::parse_ordered_json(models::file_text(*path), path->string());
  const auto facts = io::parse_ordered_json(described, "config.json");
  for (const auto& [key, value] : facts.items()) {
    if (!config.contains(key)) config[key] = value;
  }
  return config.dump(2) + "\n";
}

bool is_tied(const std::string& config_json) {
  const auto json = io::parse_ordered_json(config_json, "config.json");
  for (const char* section : {"text_config", "llm_config"}) {
    if (json.contains(section)) return json[section].value("tie_word_embeddings", false);
  }
  return json.value("tie_word_embeddings", false);
}

std::optional<std::int64_t> padding_id(const data::TokenIds& ids) {
  if (ids.pad >= 0) return ids.pad;
  return ids.eod >= 0 ? std::optional<std::int64_t>(ids.eod) : std::nullopt;
}

// Without data nothing is computed: that there are labels is enough.
data::TokenIds ids_without_data(const data::DataOptions& data) {
  data::TokenIds ids;
  ids.rewards.resize(data.reward_tokens.size());
  return ids;
}

void save(const std::filesystem::path& folder, const train::TrainSections& job,
          const std::vector<std::pair<std::string, Tensor>>& tensors, const data::TokenIds& ids) {
  const models::ModelOptions& model = job.model;
  const bool untied = model.untie_embeddings_and_output_weights;
  const std::string described = models::ModelHub::global().facts(models::configuration_of(model)).config_json;
  std::string config =
      models::edited_config(config_to_save(model, described), {.untied = untied, .dtype = models::main_dtype(tensors)});
  if (stage_of(job).head == Head::kScores) config = models::reward_config(config, padding_id(ids));
  const auto experts = model.init_from_hf_path ? models::expert_spelling(io::HfWeights(*model.init_from_hf_path))
                                               : models::ExpertSpelling::kPerExpert;
  models::write_hf_folder(folder, config, !untied && is_tied(described), tensors, experts);
  if (const auto path = models::model_path(model)) models::carry_files(*path, folder);
  if (job.data.mm_data) models::carry_files(picture_model_folder(job), folder);
  if (const auto tokenizer = tokenizer_folder(job.data, model)) models::carry_files(*tokenizer, folder);
}

data::RunLength run_length(const train::ScheduleOptions& schedule) {
  return {.train_samples = schedule.train_samples,
          .skip_train = schedule.skip_train,
          .train_iters = schedule.train_iters,
          .eval_interval = schedule.eval_interval,
          .eval_iters = schedule.eval_iters,
          .global_batch_size = schedule.global_batch_size};
}

// What a tokenizer says of the data's ids. Reads the model's configuration and the tokenizer: what cannot be trained or
// saved is reported before anything is built.
data::TokenIds read_ids(const train::TrainSections& job) {
  if (job.data.mm_data || !has_data(job.data)) return ids_without_data(job.data);
  const models::ModelFacts facts = models::ModelHub::global().facts(models::configuration_of(job.model));
  check_takes_data(facts, job.data, job.model);
  data::TokenIds ids = text_ids(job, facts.vocab_size);
  if (job.checkpoint.save) config_to_save(job.model, facts.config_json);
  return ids;
}

}  // namespace

train::PretrainCallbacks hub_callbacks(const train::TrainSections& arguments) {
  if (arguments.model.model_graph) return graph_callbacks(arguments);
  const objective::StageRow& stage = stage_of(arguments);
  const data::TokenIds ids = read_ids(arguments);
  train::PretrainCallbacks callbacks;
  callbacks.model_provider = [](const train::TrainArguments& asked) {
    return build_model(asked.job.model, stage_of(asked.job).head);
  };
  callbacks.train_valid_test_datasets_provider = [ids](const train::TrainArguments& asked) {
    if (asked.job.data.mm_data) return picture_loaders(asked.job);
    if (!asked.job.data.image_size.empty()) return planned_pictures(asked.job);
    return objective::loaders_of(stage_of(asked.job), asked.job.data, ids, run_length(asked.job.schedule));
  };
  callbacks.forward_step = objective::forward_step_of(stage, arguments.objective, ids);
  callbacks.has_reference_model = stage.has_reference && !arguments.objective.ref_logps_cache;
  callbacks.loss_unit = objective::unit_of(stage, arguments.data);
  callbacks.save_model = [ids](const auto& folder, const auto& asked, const auto& tensors) {
    save(folder, asked.job, tensors, ids);
  };
  return callbacks;
}

}  // namespace loom::cli
