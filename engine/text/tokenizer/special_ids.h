// SpecialIds: the ids that begin, end and pad texts, from the files beside tokenizer.json.
//
// bos, eos, pad, unk  the tokens that tokenizer_config.json names ("eos_token": a text, or an object with content),
//                     else special_tokens_map.json, else the ids of generation_config.json.
// stop                ends a generated text: eos_token_id of generation_config.json, one or a list; eos if it
//                     has none.
// Threads             a plain value.
// Errors              ConfigError with file and key: a token that the tokenizer does not have, another id for it in
//                     added_tokens_decoder, an id without a token.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"

namespace loom::data {

struct SpecialIds {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> pad;
  std::optional<TokenId> unk;
  std::vector<TokenId> stop;
};

// `folder` holds the files; each of them may be absent.
SpecialIds read_special_ids(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace loom::data
