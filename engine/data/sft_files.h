// SftFiles: the three pairs .bin/.idx of a data set for supervised fine-tuning, PREFIX_packed_KEY_document for the keys
// input_ids, attention_mask and labels, as MindSpeed-LLM and `shardloom preprocess` write them; or two of the four of a
// data set of preferences, which has no mask: chosen_input_ids and chosen_labels, rejected_input_ids and
// rejected_labels.
//
// Line      sequence i of each pair; they are of one length.
// Mask      numbers the samples of a line from 1, one after the other, and is 0 for padding behind them; without
//           --neat-pack all samples of a line have the number 1, padding too.
// Labels    unshifted: label i is the token at position i; negative where nothing is learnt (-100).
// Threads   const after construction.
// Errors    ConfigError with the flag, the pair and what differs: a pair is missing, lengths differ, numbers that are
//           no ids. Error from check_unchanged().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/formats/indexed/indexed_dataset.h"

namespace loom::data {

enum class AnswerKind : std::uint8_t { kOnly, kChosen, kRejected };

// The keys of a kind: ids, labels, and the mask's, which is empty if there is none.
struct SftKeys {
  std::string input_ids;
  std::string labels;
  std::string attention_mask;
};
SftKeys keys_of(AnswerKind kind);

class SftFiles {
 public:
  // `flag`: what named the prefix.
  SftFiles(const std::string& flag, const std::filesystem::path& prefix, AnswerKind kind = AnswerKind::kOnly);

  const std::filesystem::path& prefix() const { return prefix_; }
  std::int64_t line_count() const { return input_ids_.sequence_count(); }
  std::int64_t length(std::int64_t line) const { return input_ids_.length(line); }

  const io::IndexedDataset& input_ids() const { return input_ids_; }
  // Null: one sample a line.
  const io::IndexedDataset* attention_mask() const { return attention_mask_ ? &*attention_mask_ : nullptr; }
  const io::IndexedDataset& labels() const { return labels_; }

  // Error unless the files are what they were when they were opened.
  void check_unchanged() const;

 private:
  std::filesystem::path prefix_;
  io::IndexedDataset input_ids_;
  io::IndexedDataset labels_;
  std::optional<io::IndexedDataset> attention_mask_;
};

// PREFIX_packed_KEY_document.
std::filesystem::path packed_prefix(const std::filesystem::path& prefix, const std::string& key);

// Whether a prefix of --data-path belongs to such a data set: the pair of its input_ids is there, at least in part.
bool is_sft_prefix(const std::filesystem::path& prefix);

}  // namespace loom::data
