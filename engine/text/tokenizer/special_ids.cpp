#include "engine/text/tokenizer/special_ids.h"

#include <charconv>

#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/json_node.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

// A file of the folder; an empty object when it is not there.
class SmallFile {
 public:
  explicit SmallFile(const fs::path& path) : name_(path.string()), json_(nlohmann::json::object()) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) json_ = parse_json_file(path);
  }
  JsonNode node() const { return {json_, name_}; }

 private:
  std::string name_;
  nlohmann::json json_;
};

std::optional<TokenId> named_token(const JsonNode& file, std::string_view key, const Tokenizer& tokenizer) {
  const auto given = file.find(key);
  if (!given) return std::nullopt;
  const std::string token = given->is_object() ? given->text("content") : given->as_text();
  if (const auto id = tokenizer.find(token)) return id;
  given->refuse("the tokenizer has no token '{}'; add it to added_tokens of tokenizer.json", shown_text(token));
}

TokenId checked_id(const JsonNode& node, const Tokenizer& tokenizer) {
  const auto id = static_cast<TokenId>(node.as_integer(0, tokenizer.id_limit() - 1));
  if (!tokenizer.token(id)) node.refuse("the tokenizer has no token of this id");
  return id;
}

std::vector<TokenId> ids_of(const JsonNode& file, std::string_view key, const Tokenizer& tokenizer) {
  const auto given = file.find(key);
  if (!given) return {};
  if (!given->is_list()) return {checked_id(*given, tokenizer)};
  std::vector<TokenId> ids;
  for (const JsonNode& item : given->as_list()) ids.push_back(checked_id(item, tokenizer));
  return ids;
}

// added_tokens_decoder, {"ID": {"content": TOKEN}}, is Transformers' own list of added tokens.
void check_added(const JsonNode& config, const Tokenizer& tokenizer) {
  const auto list = config.find("added_tokens_decoder");
  if (!list) return;
  list->expect_object();
  for (const auto& [key, value] : list->json().items()) {
    const JsonNode entry = list->at(key);
    const std::string content = entry.text("content");
    TokenId id = -1;
    std::from_chars(key.data(), key.data() + key.size(), id);
    const auto known = tokenizer.find(content);
    if (known == id) continue;
    entry.at("content").refuse("tokenizer.json {}; the two files are of different tokenizers",
                               known ? fmt::format("gives it the id {}", *known) : "has no such token");
  }
}

}  // namespace

SpecialIds read_special_ids(const fs::path& folder, const Tokenizer& tokenizer) {
  const SmallFile config_file(folder / "tokenizer_config.json");
  const SmallFile map_file(folder / "special_tokens_map.json");
  const SmallFile generation_file(folder / "generation_config.json");
  const JsonNode generation = generation_file.node();
  check_added(config_file.node(), tokenizer);
  const auto id_of = [&](const std::string& name) {
    auto id = named_token(config_file.node(), name + "_token", tokenizer);
    if (!id) id = named_token(map_file.node(), name + "_token", tokenizer);
    if (id) return id;
    const auto ids = ids_of(generation, name + "_token_id", tokenizer);
    return ids.empty() ? id : std::optional(ids.front());
  };
  SpecialIds special{id_of("bos"), id_of("eos"), id_of("pad"), id_of("unk"), {}};
  special.stop = ids_of(generation, "eos_token_id", tokenizer);
  if (special.stop.empty() && special.eos) special.stop = {*special.eos};
  return special;
}

}  // namespace loom::data
