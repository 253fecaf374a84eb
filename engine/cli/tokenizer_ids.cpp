#include "engine/cli/tokenizer_ids.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/special_ids.h"
#include "engine/text/tokenizer/tokenizer.h"

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

data::TokenIds tokenizer_ids(const fs::path& folder, const data::DataOptions& data, std::int64_t vocab_size) {
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(folder);
  check_vocabulary(folder, tokenizer, vocab_size);
  data::TokenIds ids = ids_of(folder, tokenizer);
  add_rewards(data, folder, tokenizer, ids);
  return ids;
}

}  // namespace loom::cli
