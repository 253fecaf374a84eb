#include "engine/cli/text_data.h"

#include "engine/cli/tokenizer_ids.h"
#include "engine/core/error.h"
#include "models/hf/folder_files.h"
#include "models/hub/model_source.h"

namespace loom::cli {
namespace fs = std::filesystem;

std::optional<fs::path> tokenizer_folder(const data::DataOptions& data, const models::ModelOptions& model_options) {
  if (data::data_kind(data) == data::DataKind::kBytes) return std::nullopt;
  if (data.tokenizer_name_or_path) return data.tokenizer_name_or_path;
  const auto model = models::model_path(model_options);
  return model && models::has_tokenizer(*model) ? model : std::nullopt;
}

data::TokenIds text_ids(const train::TrainSections& a, std::int64_t vocab_size) {
  const auto folder = tokenizer_folder(a.data, a.model);
  if (!folder) {
    if (!a.data.placeholder_token && a.data.reward_tokens.empty()) return {};
    config_error("{} is a text, and no tokenizer says which id it is; give --tokenizer-name-or-path DIR",
                 a.data.placeholder_token ? "--placeholder-token" : "--reward-tokens");
  }
  return tokenizer_ids(*folder, a.data, vocab_size);
}

}  // namespace loom::cli
