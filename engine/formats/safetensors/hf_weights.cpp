#include "engine/formats/safetensors/hf_weights.h"

#include <regex>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/formats/folder_kind.h"
#include "engine/io/json_text.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

constexpr std::size_t kMostIndexBytes = std::size_t{256} << 20;

Json parse_index(const MappedFile& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (text.size() > kMostIndexBytes) {
    config_error("{}: has {} bytes, above the {} that an index may have; fetch it again", file.path().string(),
                 text.size(), kMostIndexBytes);
  }
  return parse_json(text, file.path().string());
}

// A single value unchanged, else its type.
std::string shown(const Json& value) {
  return value.is_structured() ? fmt::format("({})", value.type_name()) : shown_text(value.dump());
}

}  // namespace

std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const MappedFile file(path);
  const Json index = parse_index(file);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    config_error("{}: \"weight_map\" is missing or not an object", path.string());
  }
  std::map<std::string, std::string> map;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || fs::path(shard.get<std::string>()).filename() != shard.get<std::string>()) {
      config_error("{}: tensor '{}': its shard {} is not the name of a file in this folder", path.string(),
                   shown_text(name), shown(shard));
    }
    map[name] = shard.get<std::string>();
  }
  return map;
}

namespace {

// "model-00001-of-00003.safetensors".
bool is_shard_name(const std::string& name) {
  static const std::regex shard("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  return std::regex_match(name, shard);
}

// The shards that an index names; none if the file is not an index.
std::set<std::string> shards_of(const fs::path& index_path) {
  std::set<std::string> shards;
  std::error_code ignored;
  if (!fs::is_regular_file(index_path, ignored)) return shards;
  try {
    for (const auto& [name, shard] : read_weight_map(index_path)) shards.insert(shard);
  } catch (const ConfigError&) {
    shards.clear();
  }
  shards.erase(kSingleFile);
  return shards;
}

}  // namespace

HfWeights::HfWeights(const fs::path& folder) : folder_(folder) {
  std::error_code ignored;
  if (const std::string why = why_no_model(folder); !why.empty()) config_error("{} {}", folder.string(), why);
  if (!fs::is_directory(folder, ignored)) config_error("{}: no such folder of weights", folder.string());
  if (fs::exists(folder / kSingleFile, ignored)) {
    const SafetensorsFile& file = shards_.try_emplace(kSingleFile, folder / kSingleFile).first->second;
    for (const StoredTensor& tensor : file.tensors()) tensors_[tensor.name] = &tensor;
  } else if (fs::exists(folder / kIndexFile, ignored)) {
    read_shards(folder / kIndexFile);
  } else {
    config_error("{}: holds neither {} nor {}; save the model with safe_serialization=True", folder.string(),
                 kSingleFile, kIndexFile);
  }
}

void HfWeights::read_shards(const fs::path& index_path) {
  std::error_code ignored;
  for (const auto& [name, shard] : read_weight_map(index_path)) {
    if (!shards_.contains(shard)) {
      if (!fs::exists(folder_ / shard, ignored)) {
        config_error("{}: tensor '{}' is placed in shard '{}', which is missing; fetch it into the folder",
                     index_path.string(), name, shard);
      }
      shards_.try_emplace(shard, folder_ / shard);
    }
    const StoredTensor* tensor = shards_.at(shard).find(name);
    if (tensor == nullptr) {
      config_error(
          "{}: tensor '{}' is placed in shard '{}', which does not hold it; index and shards do not belong "
          "together",
          index_path.string(), name, shard);
    }
    tensors_[name] = tensor;
  }
}

std::vector<std::string> HfWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : tensors_) names.push_back(name);
  return names;
}

const StoredTensor* HfWeights::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

void HfWeights::add_alias(std::string name, std::string_view existing) {
  tensors_.try_emplace(std::move(name), &at(existing));
}

const StoredTensor& HfWeights::at(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  const auto nearest = nearest_spelling(name, names());
  config_error("{}: no tensor '{}'{}", folder_.string(), name,
               nearest ? fmt::format("; did you mean '{}'?", *nearest) : fmt::format(" among its {}", tensors_.size()));
}

void remove_earlier_shards(const fs::path& folder) {
  std::set<std::string> names = shards_of(folder / kIndexFile);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_shard_name(entry->path().filename())) names.insert(entry->path().filename());
  }
  // The index goes first: without it nothing refers to the shards.
  if (!error) fs::remove(folder / kIndexFile, error);
  if (error) raise<Error>("{}: cannot remove the earlier index: {}", (folder / kIndexFile).string(), error.message());
  for (const std::string& name : names) {
    fs::remove(folder / name, error);
    if (error) raise<Error>("{}: cannot remove an earlier shard: {}", (folder / name).string(), error.message());
  }
}

}  // namespace loom::io
