#include <algorithm>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/is_there.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/data/options.h"
#include "engine/data/sft_files.h"
#include "engine/formats/indexed/indexed_dataset.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

bool is_prefix(const fs::path& word) { return is_there(io::idx_path(word)) || is_there(io::bin_path(word)); }

bool is_weight(const fs::path& path) { return parse_number<double>(path.string()) && !is_prefix(path); }

fs::path input_ids_of(const fs::path& word) {
  return io::idx_path(packed_prefix(word, keys_of(AnswerKind::kOnly).input_ids));
}

bool names_samples(const fs::path& word) { return !is_prefix(word) && is_there(input_ids_of(word)); }

// The pairs that a word names.
std::vector<fs::path> pairs_of_word(const fs::path& word, const DataOptions& options) {
  if (!options.is_instruction_dataset) return {word};
  std::vector<fs::path> pairs;
  const auto add = [&](AnswerKind kind) {
    const SftKeys keys = keys_of(kind);
    for (const std::string& key : {keys.input_ids, keys.attention_mask, keys.labels}) {
      if (!key.empty()) pairs.push_back(packed_prefix(word, key));
    }
  };
  if (options.is_pairwise_dataset) {
    add(AnswerKind::kChosen);
    add(AnswerKind::kRejected);
  } else {
    add(AnswerKind::kOnly);
  }
  return pairs;
}

std::vector<fs::path> data_words(const DataOptions& options) {
  std::vector<fs::path> words = options.data_path;
  for (const auto& part : options.part_data_path) words.insert(words.end(), part.begin(), part.end());
  return words;
}

bool has_parts(const DataOptions& options) {
  return std::ranges::any_of(options.part_data_path, [](const auto& words) { return !words.empty(); });
}

}  // namespace

DataKind data_kind(const DataOptions& options) {
  if (options.mm_data) return DataKind::kConversations;
  if (options.is_instruction_dataset) return DataKind::kInstructions;
  const std::vector<fs::path> words = data_words(options);
  if (const auto sft = std::ranges::find_if(words, names_samples); sft != words.end()) {
    config_error(
        "{} names samples for fine-tuning: there is {}; add --stage sft, or give the prefix of a pair of token ids",
        escaped(sft->string()), escaped(input_ids_of(*sft).string()));
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
  if (options.mm_data || data_kind(options) == DataKind::kBytes) return weights;
  for (const fs::path& word : data_words(options)) {
    if (is_weight(word)) weights.push_back(word.string());
  }
  return weights;
}

std::vector<fs::path> data_inputs(const DataOptions& options) {
  if (options.mm_data) return {*options.mm_data};
  if (data_kind(options) == DataKind::kBytes) return options.data_path;
  std::vector<fs::path> files;
  for (const fs::path& word : data_words(options)) {
    if (is_weight(word)) continue;
    for (const fs::path& pair : pairs_of_word(word, options)) {
      files.push_back(io::idx_path(pair));
      files.push_back(io::bin_path(pair));
    }
  }
  return files;
}

}  // namespace loom::data
