#include "engine/cli/text_data.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/byte_batches.h"
#include "engine/text/tokenizer/special_ids.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "models/hf/folder_files.h"

namespace loom::cli {
namespace {

namespace fs = std::filesystem;

data::TokenIds ids_of(const fs::path& folder, const data::Tokenizer& tokenizer) {
  const data::SpecialIds special = data::read_special_ids(folder, tokenizer);
  data::TokenIds ids{.eod = special.eos.value_or(-1), .pad = special.pad.value_or(-1), .others = {}};
  for (const auto& id : {special.bos, special.eos, special.unk}) {
    if (id) ids.others.push_back(*id);
  }
  return ids;
}

// The id of a text that is one token.
std::int32_t reward_id(const fs::path& folder, const data::Tokenizer& tokenizer, const char* flag,
                       const std::string& text) {
  const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
  if (ids.size() == 1) return ids.front();
  config_error("{}: '{}' is {} tokens of the tokenizer in {}; give a text that is one", flag, shown_text(text),
               ids.size(), escaped(folder.string()));
}

void add_rewards(const data::DataOptions& data, const fs::path& folder, const data::Tokenizer& tokenizer,
                 data::TokenIds& ids) {
  if (data.placeholder_token) {
    ids.placeholder = reward_id(folder, tokenizer, "--placeholder-token", *data.placeholder_token);
  }
  for (const std::string& token : data.reward_tokens) {
    ids.rewards.push_back(reward_id(folder, tokenizer, "--reward-tokens", token));
  }
}

void check_vocabulary(const fs::path& folder, const data::Tokenizer& tokenizer, std::int64_t vocab_size) {
  const std::int64_t ids = tokenizer.id_limit();
  if (vocab_size == 0 || ids <= vocab_size) return;
  config_error(
      "the tokenizer in {} has ids up to {}, but vocab_size of the model is {}; use the model's own tokenizer, or a "
      "model with vocab_size: {} or more",
      escaped(folder.string()), ids - 1, vocab_size, ids);
}

}  // namespace

std::optional<fs::path> tokenizer_folder(const data::DataOptions& data, const models::ModelOptions& model_options) {
  if (data::data_kind(data) == data::DataKind::kBytes) return std::nullopt;
  if (data.tokenizer_name_or_path) return data.tokenizer_name_or_path;
  const auto& model = model_options.init_from_hf_path ? model_options.init_from_hf_path : model_options.model_config;
  return model && models::has_tokenizer(*model) ? model : std::nullopt;
}

data::TokenIds text_ids(const train::TrainSections& a, std::int64_t vocab_size) {
  const auto folder = tokenizer_folder(a.data, a.model);
  if (!folder) {
    if (!a.data.placeholder_token && a.data.reward_tokens.empty()) return {};
    config_error("{} is a text, and no tokenizer says which id it is; give --tokenizer-name-or-path DIR",
                 a.data.placeholder_token ? "--placeholder-token" : "--reward-tokens");
  }
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(*folder);
  check_vocabulary(*folder, tokenizer, vocab_size);
  data::TokenIds ids = ids_of(*folder, tokenizer);
  add_rewards(a.data, *folder, tokenizer, ids);
  return ids;
}

data::DataLoaders text_data_loaders(const data::DataOptions& data, const train::ScheduleOptions& schedule,
                                    const data::TokenIds& ids) {
  if (data::data_kind(data) == data::DataKind::kBytes) return data::byte_data_loaders(data);
  const data::SampleCounts counts = data::sample_counts({.train_samples = schedule.train_samples,
                                                         .skip_train = schedule.skip_train,
                                                         .train_iters = schedule.train_iters,
                                                         .eval_interval = schedule.eval_interval,
                                                         .eval_iters = schedule.eval_iters,
                                                         .global_batch_size = schedule.global_batch_size});
  if (data::data_kind(data) == data::DataKind::kTokens) return data::token_data_loaders(data, ids, counts);
  if (data.stage == data::Stage::kPrm)
    return data::process_reward_data_loaders(data, ids, counts, schedule.global_batch_size);
  if (data.is_pairwise_dataset) return data::preference_data_loaders(data, ids, counts, schedule.global_batch_size);
  return data::instruction_data_loaders(data, ids, counts, schedule.global_batch_size);
}

}  // namespace loom::cli
