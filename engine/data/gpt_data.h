// GptData: training, validation and test samples of .bin/.idx pairs, as --data-path and similar flags name them.
//
// One distribution   `blend` is cut by `split`; a part whose weight is 0 is absent, and so is one of evaluation that
//                    has no token, or of a blend with weights one in which a pair has none.
// One for each part  `blends` (--train-data-path, --valid-data-path, --test-data-path): each whole, and no `split`.
// One pair           without a weight: its samples as they come.
// Several            with weights: of N samples each gives ceil(N * w), of ceil(ceil(N * w) * 1.005) that are made; the
//                    blend has the sum of the former. Without weights: an epoch of each, in the ratio of their samples;
//                    all of them, or N where N is less.
// Caches             of the pairs in `cache_path`, else in PREFIX/cache/GPTDataset_indices; of blends in `cache_path`
//                    alone.
// Threads            opening is safe from several threads and processes at once; samples are constant.
// Errors             ConfigError with the flag and the pair.
// Source             megatron/core/datasets/blended_megatron_dataset_builder.py.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/blend.h"
#include "engine/data/data_split.h"
#include "engine/data/gpt_dataset.h"
#include "engine/data/index_cache.h"

namespace loom::data {

struct GptDataOptions {
  std::optional<DataBlend> blend{};
  std::string split = "969,30,1";
  PerSplit<std::optional<DataBlend>> blends{};
  // None: an epoch, without weights only.
  PerSplit<std::optional<std::int64_t>> samples{};
  PerSplit<bool> wanted{true, true, true};  // others are absent
  GptSampleOptions sample{};
  std::filesystem::path cache_path{};
  std::chrono::milliseconds longest_wait = std::chrono::minutes(10);  // for another process that builds indices
};

// The samples of one part: one pair's, or a blend of several.
class BlendedDataset {
 public:
  explicit BlendedDataset(GptDataset only);
  // `index`: int16 data sets and int64 samples of them (BlendIndex).
  BlendedDataset(std::vector<GptDataset> sets, std::vector<double> weights, IndexArrays index);

  std::int64_t sample_count() const { return sample_count_; }
  const std::vector<GptDataset>& sets() const { return sets_; }
  // The weights of the blend; empty for a pair without a weight, as are the two indices.
  const std::vector<double>& weights() const { return weights_; }
  std::span<const std::int16_t> dataset_index() const { return dataset_; }
  std::span<const std::int64_t> dataset_sample_index() const { return sample_; }

  // Before: 0 <= sample < sample_count().
  void fill(std::int64_t sample, const GptSampleRow& row) const;

 private:
  std::vector<GptDataset> sets_;
  std::vector<double> weights_;
  IndexArrays index_;
  std::span<const std::int16_t> dataset_;
  std::span<const std::int64_t> sample_;
  std::int64_t sample_count_ = 0;
};

// ConfigError naming a set from which the blend draws more samples than it has; the surplus makes this rare.
// Before: `index` is one of these sets, as BlendedDataset takes it.
void check_blend(const std::string& flag, DataSplit split, std::span<const GptDataset> sets, const IndexArrays& index);

// Indexed by place_of(DataSplit).
using GptData = PerSplit<std::optional<BlendedDataset>>;

GptData open_gpt_data(const GptDataOptions& options);

}  // namespace loom::data
