// Which part of a data set is for training, validation and test.
//
// Source   megatron/core/datasets: blended_megatron_dataset_config.py, blended_megatron_dataset_builder.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace loom::data {

enum class DataSplit : std::uint8_t { kTrain, kValid, kTest };

inline constexpr std::array kDataSplits{DataSplit::kTrain, DataSplit::kValid, DataSplit::kTest};

// A value for each.
template <class T>
using PerSplit = std::array<T, kDataSplits.size()>;

inline std::size_t place_of(DataSplit split) { return static_cast<std::size_t>(split); }
// "train", "valid", "test".
std::string_view name_of(DataSplit split);

// A share of a data set, from 0 to 1.
struct SplitShare {
  double begin = 0;
  double end = 1;
};

// "969,30,1": weights of the three, which need not sum to anything; those left out are 0. None for a weight of 0.
// ConfigError that names --split for a text that is none, more than three numbers, or zeros alone.
PerSplit<std::optional<SplitShare>> parse_split(const std::string& text);

// Sequences [begin, end) of a data set.
struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

// Both ends rounded to the nearest number, halves to the even one.
SequenceRange range_of(const SplitShare& share, std::int64_t sequences);

}  // namespace loom::data
