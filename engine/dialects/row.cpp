#include "engine/dialects/row.h"

#include <fmt/core.h>
#include <vector>

namespace loom::dialects {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;  // there, here

std::vector<Pair> pairs_of(std::string_view words) {
  std::vector<Pair> pairs;
  while (!words.empty()) {
    const std::string_view one = words.substr(0, words.find('|'));
    words.remove_prefix(std::min(words.size(), one.size() + 1));
    const std::size_t equal = one.find('=');
    pairs.emplace_back(one.substr(0, equal), equal == std::string_view::npos ? one : one.substr(equal + 1));
  }
  return pairs;
}

}  // namespace

const Table* table_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::kNative:
      return &native_table();
    case Dialect::kLlm:
      return &llm_table();
    case Dialect::kAccelerate:
      return &accelerate_table();
    case Dialect::kTransformers:
      return &transformers_table();
    case Dialect::kDeepSpeed:
      return &deepspeed_table();
    case Dialect::kTorchtitan:
      return &torchtitan_table();
    case Dialect::kFlat:
    case Dialect::kGptArgs:
      break;
  }
  return nullptr;
}

std::optional<std::string_view> word_here(const Row& row, std::string_view word) {
  if (row.words.empty()) return word;
  for (const auto& [there, here] : pairs_of(row.words)) {
    if (there == word) return here;
  }
  return std::nullopt;
}

std::optional<std::string_view> word_there(const Row& row, std::string_view word) {
  if (row.words.empty()) return word;
  for (const auto& [there, here] : pairs_of(row.words)) {
    if (here == word) return there;
  }
  return std::nullopt;
}

std::string words_there(const Row& row) {
  const std::vector<Pair> pairs = pairs_of(row.words);
  std::string text;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == pairs.size() ? " or " : ", ", pairs[i].first);
  }
  return text;
}

}  // namespace loom::dialects
