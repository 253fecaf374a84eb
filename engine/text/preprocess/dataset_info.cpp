#include "engine/text/preprocess/dataset_info.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/text/tokenizer/json_node.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;

struct Formatting {
  std::string_view name;
  std::string_view handler;
  Keys columns;
};

const std::vector<Formatting>& formattings() {
  static const std::vector<Formatting> all = {
      {"alpaca", "AlpacaStyleInstructionHandler", {"prompt", "query", "response", "history", "system"}},
      {"sharegpt", "SharegptStyleInstructionHandler", {"messages", "system", "tools"}},
      {"openai", "OpenAIInstructionHandler", {"messages", "system", "tools"}}};
  return all;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

std::vector<std::string> listed_names(const std::string& list) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    const std::size_t slash = item.rfind('/');
    names.push_back(trimmed(slash == std::string::npos ? item : item.substr(slash + 1)));
    if (names.back().empty()) {
      config_error(
          "--input is '{}', and name {} of the list is empty; give names of dataset_info.json, separated by "
          "commas",
          shown_text(list), names.size());
    }
    begin = end + 1;
  }
  return names;
}

JsonNode entry_of(const JsonNode& file, const std::string& name) {
  if (const auto entry = file.find(name)) return *entry;
  Keys known;
  for (const auto& [key, value] : file.json().items()) known.push_back(shown_text(key));
  const auto nearest = nearest_spelling(name, known);
  config_error("{}: --input names '{}', which is no data set of this file; {}its data sets are {}", file.file(),
               shown_text(name), nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(known, ", "));
}

const Formatting& formatting_of(const JsonNode& entry) {
  const auto given = entry.find("formatting");
  if (!given) return formattings().front();
  const auto found = std::ranges::find(formattings(), given->as_text(), &Formatting::name);
  if (found != formattings().end()) return *found;
  given->refuse("use alpaca, sharegpt or openai");
}

// Every column that may be given, those that are not as switched off.
void add_columns(const JsonNode& entry, const Formatting& formatting, nlohmann::json& map) {
  const auto columns = entry.find("columns");
  if (!columns) return;
  columns->expect_object();
  for (const auto& [key, value] : columns->json().items()) {
    if (std::ranges::find(formatting.columns, key) != formatting.columns.end()) continue;
    columns->at(key).refuse("data sets of formatting {} have the columns {}", formatting.name,
                            fmt::join(formatting.columns, ", "));
  }
  for (const std::string& column : formatting.columns) {
    const auto given = columns->find(column);
    map[column] = given ? given->as_text() : "";
  }
}

void add_tags(const JsonNode& entry, const Formatting& formatting, nlohmann::json& map) {
  const auto tags = entry.find("tags");
  if (!tags) return;
  if (formatting.name != "sharegpt") tags->refuse("only data sets of formatting sharegpt have tags; take it out");
  map["tags"] = tags->json();
}

DatasetInfo info_of(const JsonNode& file, const fs::path& folder, const std::string& name) {
  const JsonNode entry = entry_of(file, name);
  if (!entry.find("file_name")) {
    config_error("{} has no file_name; Shardloom downloads no data sets: put the file beside {} and name it there",
                 entry.where(), file.file());
  }
  entry.allow_only({"file_name", "formatting", "columns", "tags", "ranking", "hf_hub_url", "ms_hub_url", "om_hub_url"});
  if (entry.flag("ranking", false)) {
    entry.at("ranking").refuse(
        "LlamaFactoryInstructionHandler writes no pairs; use AlpacaStylePairwiseHandler or "
        "SharegptStylePairwiseHandler on the file");
  }
  const Formatting& formatting = formatting_of(entry);
  nlohmann::json map = nlohmann::json::object();
  add_columns(entry, formatting, map);
  add_tags(entry, formatting, map);
  return {name, folder / entry.text("file_name"), std::string(formatting.handler), map.dump(), entry.where()};
}

}  // namespace

std::vector<DatasetInfo> read_dataset_info(const fs::path& dataset_dir, const std::string& names) {
  const fs::path path = dataset_dir / "dataset_info.json";
  std::error_code ignored;
  if (dataset_dir.empty()) {
    config_error(
        "LlamaFactoryInstructionHandler reads data sets that a dataset_info.json names; give its folder by "
        "--dataset-dir");
  }
  if (!fs::is_regular_file(path, ignored)) {
    config_error("{} is no file; --dataset-dir is the folder of dataset_info.json", path.string());
  }
  const std::string file = path.string();
  const nlohmann::json json = parse_json_file(path);
  const JsonNode node(json, file);
  node.expect_object();
  std::vector<DatasetInfo> sets;
  for (const std::string& name : listed_names(names)) sets.push_back(info_of(node, dataset_dir, name));
  return sets;
}

HandlerOptions options_of(const DatasetInfo& dataset, const HandlerOptions& given) {
  HandlerOptions options = given;
  options.handler_name = dataset.handler_name;
  options.map_keys = dataset.map_keys;
  options.map_keys_place = dataset.where;
  return options;
}

std::int64_t mixed_count(MixStrategy strategy, std::span<const std::int64_t> counts) {
  const auto sets = static_cast<std::int64_t>(counts.size());
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  if (strategy == MixStrategy::kConcat || sets < 2) return sum;
  const auto [least, most] = std::ranges::minmax(counts);
  if (strategy == MixStrategy::kInterleaveUnder) return least * sets;
  if (least == 0 && most > 0) {
    config_error("--mix-strategy is interleave_over, and data set {} of --input gives no sample; take it out",
                 std::ranges::find(counts, 0) - counts.begin() + 1);
  }
  return most * sets;
}

MixedSample mixed_sample(MixStrategy strategy, std::span<const std::int64_t> counts, std::int64_t position) {
  if (strategy == MixStrategy::kConcat || counts.size() < 2) {
    std::size_t dataset = 0;
    while (position >= counts[dataset]) position -= counts[dataset++];
    return {dataset, position};
  }
  const auto sets = static_cast<std::int64_t>(counts.size());
  const auto dataset = static_cast<std::size_t>(position % sets);
  return {dataset, position / sets % counts[dataset]};
}

}  // namespace loom::data
