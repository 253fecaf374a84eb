// Data sets of a dataset_info.json in LLaMA-Factory's format, and the order in which their samples are mixed.
//
// Entry      "NAME": {"file_name": PATH, "formatting": "alpaca" | "sharegpt" | "openai", "columns": {...},
//            "tags": {...}}. PATH is a file or a folder, relative to dataset_info.json. If columns are given,
//            only those are read; missing tags keep their defaults.
// Errors     ConfigError with file and key: an unknown name (with the nearest one), data that must be
//            downloaded, pairs (ranking), an unsupported key.
// Source     MindSpeed-LLM mindspeed_llm/tasks/preprocess/utils.py, get_dataset_list, merge_dataset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/text/preprocess/options.h"

namespace loom::data {

struct DatasetInfo {
  std::string name;
  std::filesystem::path path;
  std::string handler_name;  // the handler of its records
  std::string map_keys;      // a JSON object, for --map-keys of this handler
  std::string where;         // "data/dataset_info.json: one", for messages
};

// `names` is --input: names separated by commas, spaces around them and folders before them do not count.
std::vector<DatasetInfo> read_dataset_info(const std::filesystem::path& dataset_dir, const std::string& names);

// The options of the handler of a data set.
HandlerOptions options_of(const DatasetInfo& dataset, const HandlerOptions& given);

struct MixedSample {
  std::size_t dataset = 0;
  std::int64_t sample = 0;  // among the samples that were not dropped
};

// Number of samples in total. `counts`: the samples of each data set that were not dropped.
//
// concat            each data set once, one behind the other.
// interleave_under  one of each in turn, until the smallest is exhausted.
// interleave_over   one of each in turn, until the largest is exhausted; smaller ones start again.
std::int64_t mixed_count(MixStrategy strategy, std::span<const std::int64_t> counts);

// The sample at `position`, which is below mixed_count().
MixedSample mixed_sample(MixStrategy strategy, std::span<const std::int64_t> counts, std::int64_t position);

}  // namespace loom::data
