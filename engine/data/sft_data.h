// SftData: training, validation and test samples of data for supervised fine-tuning, as named by --data-path and
// related flags.
//
// One distribution   one prefix, cut by `split`; a part whose weight is 0 is absent, and one
//                    of evaluation that has no line while samples of it are wanted.
// One for each part  `prefixes` (--train-data-path, --valid-data-path, --test-data-path): each whole, and no `split`.
// Threads            opening is safe from several threads and processes at once; samples are constant.
// Errors             ConfigError with the flag and the files.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/data/data_split.h"
#include "engine/data/sft_dataset.h"

namespace loom::data {

struct SftDataOptions {
  std::optional<std::filesystem::path> prefix{};
  std::string split = "969,30,1";
  PerSplit<std::optional<std::filesystem::path>> prefixes{};
  PerSplit<std::optional<std::int64_t>> samples{};  // none: an epoch; 0: the part is left out
  AnswerKind kind = AnswerKind::kOnly;
  SftSampleOptions sample{};
  std::filesystem::path cache_path{};  // empty: the index stays in memory
  std::chrono::milliseconds longest_wait = std::chrono::minutes(10);
};

// Indexed by place_of(DataSplit).
using SftData = PerSplit<std::optional<SftDataset>>;

SftData open_sft_data(const SftDataOptions& options);

}  // namespace loom::data
