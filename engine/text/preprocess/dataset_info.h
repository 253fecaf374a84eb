// Data sets of a dataset_info.json, as LLaMA-Factory writes it, and in which order their samples are mixed.
//
// Entry      "NAME": {"file_name": PATH, "formatting": "alpaca" | "sharegpt" | "openai", "columns": {...},
//            "tags": {...}}. PATH is a file or a folder, from the folder of dataset_info.json. Where columns are given,
//            only those are read; tags that are not given keep their defaults.
// Errors     ConfigError with file and key: a name that is not there (the nearest is named), data that would have to be
//            downloaded, pairs (ranking), a key that is not read.
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
  std::string handler_name;  // that reads its records
  std::string map_keys;      // a JSON object, for --map-keys of this handler
  std::string where;         // "data/dataset_info.json: one", for messages
};

// `names` is --input: names separated by commas, spaces around them and folders before them do not count.
std::vector<DatasetInfo> read_dataset_info(const std::filesystem::path& dataset_dir, const std::string& names);

// What the handler of a data set is made of.
HandlerOptions options_of(const DatasetInfo& dataset, const HandlerOptions& given);

struct MixedSample {
  std::size_t dataset = 0;
  std::int64_t sample = 0;  // of those that were not dropped
};

// Samples altogether. `counts`: those of each data set that were not dropped.
//
// concat            each data set once, one behind the other.
// interleave_under  one of each in turn, until the smallest is used up.
// interleave_over   one of each in turn, until the largest is used up; smaller ones begin again.
std::int64_t mixed_count(MixStrategy strategy, std::span<const std::int64_t> counts);

// The sample at `position`, which is below mixed_count().
MixedSample mixed_sample(MixStrategy strategy, std::span<const std::int64_t> counts, std::int64_t position);

}  // namespace loom::data
