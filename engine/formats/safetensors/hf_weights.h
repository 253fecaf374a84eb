// HfWeights: the weights of a Hugging Face folder, in one safetensors file or in shards.
//
// Finds    model.safetensors, or else model.safetensors.index.json ({"weight_map": {tensor: shard file}}) and its
//          shards. The index decides: a tensor that a shard holds and the index does not name is not part of the model.
// Threads  reading is safe from any number of threads.
// Errors   ConfigError when the folder holds neither, the index is malformed, a shard is missing or lacks a tensor that
//          the index places there. All files are opened and checked at construction; no tensor data is read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"

namespace loom::io {

class HfWeights {
 public:
  explicit HfWeights(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // Sorted.
  std::vector<std::string> names() const;
  // Null when the model has no such tensor. Valid as long as this object or the object that it was moved to.
  const StoredTensor* find(std::string_view name) const;
  // Throws ConfigError with the nearest existing name.
  const StoredTensor& at(std::string_view name) const;

  // From now on `name` finds the tensor of `existing`, unless it has its own. Precondition: `existing` is stored.
  void add_alias(std::string name, std::string_view existing);

 private:
  void read_shards(const std::filesystem::path& index_path);

  std::filesystem::path folder_;
  std::map<std::string, SafetensorsFile> shards_;  // by file name
  std::map<std::string, const StoredTensor*, std::less<>> tensors_;
};

// The file of each tensor, from model.safetensors.index.json. ConfigError for a file that is not an index.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index);

// After a whole model.safetensors has been put into `folder`: removes the index and the shards of an earlier model
// ("model-00001-of-00003.safetensors", and the files that the index names), which no longer belong to it.
// Throws Error naming a file that cannot be removed.
void remove_earlier_shards(const std::filesystem::path& folder);

}  // namespace loom::io
