#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/options.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

fs::path file_of(const fs::path& prefix, const std::string& extension) {
  fs::path file = prefix;
  file += extension;
  return file;
}

bool is_prefix(const fs::path& word) { return is_there(file_of(word, ".idx")) || is_there(file_of(word, ".bin")); }

bool is_weight(const fs::path& path) {
  const std::string word = path.string();
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc{} && end == word.data() + word.size() && !is_prefix(path);
}

constexpr const char* kInputIds = "_packed_input_ids_document.idx";
constexpr std::array kKeys = {"input_ids", "attention_mask", "labels"};
constexpr std::array kPairwiseKeys = {"chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"};

bool is_sft_prefix(const fs::path& word) { return !is_prefix(word) && is_there(file_of(word, kInputIds)); }

std::vector<fs::path> words_of(const DataOptions& options) {
  std::vector<fs::path> words = options.data_path;
  for (const auto& part : options.part_data_path) words.insert(words.end(), part.begin(), part.end());
  return words;
}

bool has_parts(const DataOptions& options) {
  return std::ranges::any_of(options.part_data_path, [](const auto& words) { return !words.empty(); });
}

}  // namespace

DataKind data_kind(const DataOptions& options) {
  if (options.is_instruction_dataset) return DataKind::kInstructions;
  const std::vector<fs::path> words = words_of(options);
  if (const auto sft = std::ranges::find_if(words, is_sft_prefix); sft != words.end()) {
    config_error(
        "{} names samples for fine-tuning: there is {}; add --stage sft, or give the prefix of a pair of token ids",
        escaped(sft->string()), escaped(file_of(*sft, kInputIds).string()));
  }
  if (has_parts(options)) return DataKind::kTokens;
  const auto is_file = [](const fs::path& word) { return is_there(word) && !is_prefix(word); };
  const auto pair = std::ranges::find_if(options.data_path, is_prefix);
  if (pair == options.data_path.end()) return DataKind::kBytes;
  const auto file = std::ranges::find_if(options.data_path, is_file);
  if (file == options.data_path.end()) return DataKind::kTokens;
  config_error(
      "--data-path has {}, of which there are .bin and .idx, and {}, a file or folder; give pairs of token ids alone, "
      "or "
      "text alone",
      escaped(pair->string()), escaped(file->string()));
}

std::vector<std::string> data_weights(const DataOptions& options) {
  std::vector<std::string> weights;
  if (data_kind(options) == DataKind::kBytes) return weights;
  for (const fs::path& word : words_of(options)) {
    if (is_weight(word)) weights.push_back(word.string());
  }
  return weights;
}

std::vector<fs::path> data_inputs(const DataOptions& options) {
  if (data_kind(options) == DataKind::kBytes) return options.data_path;
  std::vector<fs::path> files;
  const auto add = [&](const fs::path& prefix) {
    for (const char* extension : {".idx", ".bin"}) files.push_back(file_of(prefix, extension));
  };
  for (const fs::path& word : words_of(options)) {
    if (is_weight(word)) continue;
    const auto add_key = [&](const char* key) { add(file_of(word, fmt::format("_packed_{}_document", key))); };
    if (options.is_pairwise_dataset) {
      std::ranges::for_each(kPairwiseKeys, add_key);
    } else if (options.is_instruction_dataset) {
      std::ranges::for_each(kKeys, add_key);
    } else {
      add(word);
    }
  }
  return files;
}

}  // namespace loom::data
