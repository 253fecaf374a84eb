#include "engine/data/sft_files.h"

#include <cstring>

#include "engine/core/error.h"
#include "engine/core/is_there.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;

std::string shown_file(const fs::path& path) { return escaped(path.string()); }

io::IndexedDataset open_key(const std::string& flag, const fs::path& prefix, const SftKeys& keys,
                            const std::string& key) {
  const fs::path pair = packed_prefix(prefix, key);
  for (const fs::path& file : {io::bin_path(pair), io::idx_path(pair)}) {
    if (is_there(file)) continue;
    config_error(
        "{} {}: {} is not there; {}", flag, shown_file(prefix), shown_file(file),
        keys.attention_mask.empty()
            ? "data of preferences has the pairs chosen_input_ids, chosen_labels, rejected_input_ids and "
              "rejected_labels, which `shardloom preprocess` writes with a pairwise handler"
            : "data for fine-tuning has the pairs input_ids, attention_mask and labels, which `shardloom preprocess` "
              "writes with an instruction handler");
  }
  io::IndexedDataset opened(pair);
  if (opened.dtype() == io::IndexedDtype::kF32 || opened.dtype() == io::IndexedDtype::kF64) {
    config_error("{} {}: {} holds {}, which are not token ids; give pairs of integers", flag, shown_file(prefix),
                 shown_file(pair), io::name_of(opened.dtype()));
  }
  return opened;
}

void check_same_lengths(const std::string& flag, const fs::path& prefix, const io::IndexedDataset& first,
                        const io::IndexedDataset& other) {
  if (first.sequence_count() != other.sequence_count()) {
    config_error("{} {}: {} has {} sequences, and {} has {}; write them together", flag, shown_file(prefix),
                 shown_file(first.prefix().filename()), first.sequence_count(), shown_file(other.prefix().filename()),
                 other.sequence_count());
  }
  const auto a = first.length_bytes();
  const auto b = other.length_bytes();
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  for (std::int64_t i = 0; i < first.sequence_count(); ++i) {
    if (first.length(i) == other.length(i)) continue;
    config_error("{} {}: sequence {} has {} numbers in {}, and {} in {}; write them together", flag, shown_file(prefix),
                 i, first.length(i), shown_file(first.prefix().filename()), other.length(i),
                 shown_file(other.prefix().filename()));
  }
}

}  // namespace

fs::path packed_prefix(const fs::path& prefix, const std::string& key) {
  fs::path pair = prefix;
  pair += "_packed_" + key + "_document";
  return pair;
}

bool is_sft_prefix(const fs::path& prefix) {
  const fs::path pair = packed_prefix(prefix, "input_ids");
  return is_there(io::idx_path(pair)) || is_there(io::bin_path(pair));
}

SftKeys keys_of(AnswerKind kind) {
  switch (kind) {
    case AnswerKind::kChosen:
      return {"chosen_input_ids", "chosen_labels", ""};
    case AnswerKind::kRejected:
      return {"rejected_input_ids", "rejected_labels", ""};
    case AnswerKind::kOnly:
      break;
  }
  return {"input_ids", "labels", "attention_mask"};
}

SftFiles::SftFiles(const std::string& flag, const fs::path& prefix, AnswerKind kind)
    : prefix_(prefix),
      input_ids_(open_key(flag, prefix, keys_of(kind), keys_of(kind).input_ids)),
      labels_(open_key(flag, prefix, keys_of(kind), keys_of(kind).labels)) {
  if (const std::string& mask = keys_of(kind).attention_mask; !mask.empty()) {
    attention_mask_.emplace(open_key(flag, prefix, keys_of(kind), mask));
    check_same_lengths(flag, prefix, input_ids_, *attention_mask_);
  }
  check_same_lengths(flag, prefix, input_ids_, labels_);
}

void SftFiles::check_unchanged() const {
  input_ids_.check_unchanged();
  if (attention_mask_) attention_mask_->check_unchanged();
  labels_.check_unchanged();
}

}  // namespace loom::data
