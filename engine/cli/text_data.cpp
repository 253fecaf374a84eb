#include "engine/cli/text_data.h"

#include <algorithm>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/byte_batches.h"
#include "engine/data/tokenizer/special_ids.h"
#include "engine/data/tokenizer/tokenizer.h"

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

void check_vocabulary(const fs::path& folder, const data::Tokenizer& tokenizer, std::int64_t vocab_size) {
  const std::int64_t ids = tokenizer.id_limit();
  if (vocab_size == 0 || ids <= vocab_size) return;
  config_error(
      "the tokenizer in {} has ids up to {}, but vocab_size of the model is {}; use the model's own tokenizer, or a "
      "model with vocab_size: {} or more",
      escaped(folder.string()), ids - 1, vocab_size, ids);
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "tokenizer.json", unreadable);
}

std::optional<fs::path> tokenizer_folder(const train::TrainArguments& a) {
  if (data::data_kind(a) == data::DataKind::kBytes) return std::nullopt;
  if (a.tokenizer_name_or_path) return a.tokenizer_name_or_path;
  const auto& model = a.init_from_hf_path ? a.init_from_hf_path : a.model_config;
  return model && has_tokenizer(*model) ? model : std::nullopt;
}

data::TokenIds text_ids(const train::TrainArguments& a, std::int64_t vocab_size) {
  const auto folder = tokenizer_folder(a);
  if (!folder) return {};
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(*folder);
  check_vocabulary(*folder, tokenizer, vocab_size);
  return ids_of(*folder, tokenizer);
}

data::DataLoaders text_data_loaders(const train::TrainArguments& a, const data::TokenIds& ids) {
  if (data::data_kind(a) == data::DataKind::kBytes) return data::byte_data_loaders(a);
  const data::SampleCounts counts = data::sample_counts({.train_samples = a.train_samples,
                                                         .train_iters = a.train_iters,
                                                         .eval_interval = a.eval_interval,
                                                         .eval_iters = a.eval_iters,
                                                         .global_batch_size = a.global_batch_size});
  if (data::data_kind(a) == data::DataKind::kTokens) return data::token_data_loaders(a, ids, counts);
  if (a.is_pairwise_dataset) return data::preference_data_loaders(a, ids, counts, a.global_batch_size);
  return data::instruction_data_loaders(a, ids, counts, a.global_batch_size);
}

}  // namespace loom::cli
