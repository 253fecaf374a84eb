// A Hugging Face folder that a conversion writes: weights in files of bounded size, the index, and the model's other
// files. Private to engine/convert.
//
// Outputs  appear whole or not at all.
// Threads  one thread at a time.
// Errors   ConfigError for the place, Error if writing fails; the readers' errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/convert.h"
#include "engine/convert/hf/assets.h"

namespace loom::checkpoint {

// The tensors of each file of weights.
using Shards = std::map<std::string, std::vector<OutputTensor>>;

// Files of at most `shard_bytes` (one tensor at least); none: as in the assets' index, or else kDefaultShardBytes.
// A tensor that is not in the index goes into the last file.
Shards shards_of(std::vector<OutputTensor> outputs, std::optional<std::uint64_t> shard_bytes, const Assets& assets);

// Writes the files of weights; `finish` then adds files to the unfinished folder. The folder, of --save-dir, is
// new or empty.
Converted write_whole_folder(const std::filesystem::path& save_dir, const Shards& shards, const CopyWatcher& watcher,
                             const std::function<void(const std::filesystem::path& folder)>& finish);

// Writes the folder of a model: with the index and the assets' files. With `untied`, config.json declares the output
// layer and the embedding as two tensors.
Converted write_hf_folder(const std::filesystem::path& save_dir, const Shards& shards, const Assets& assets,
                          const CopyWatcher& watcher, bool untied = false);

}  // namespace loom::checkpoint
