#include "engine/convert/hf/hf_output.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/convert/whole_folder.h"
#include "engine/io/atomic_file.h"

namespace loom::checkpoint {
namespace {

// As many tensors a file as fit, in their order; one that is larger has a file of its own.
Shards cut(std::vector<OutputTensor> outputs, std::uint64_t shard_bytes) {
  std::vector<std::vector<OutputTensor>> groups(1);
  std::uint64_t bytes = 0;
  for (OutputTensor& output : outputs) {
    const std::uint64_t size = output.size_bytes();
    if (!groups.back().empty() && bytes + size > shard_bytes) {
      groups.emplace_back();
      bytes = 0;
    }
    bytes += size;
    groups.back().push_back(std::move(output));
  }
  Shards shards;
  if (groups.size() == 1) {
    shards["model.safetensors"] = std::move(groups.front());
    return shards;
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    shards[fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, groups.size())] = std::move(groups[i]);
  }
  return shards;
}

void write_index(const std::filesystem::path& folder, const Shards& shards) {
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> files;
  for (const auto& [file, tensors] : shards) {
    for (const OutputTensor& tensor : tensors) {
      files[tensor.name] = file;
      bytes += tensor.size_bytes();
    }
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = bytes;
  index["weight_map"] = files;
  io::write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

// The type that most elements of the floating tensors get.
std::optional<DType> main_dtype(const Shards& shards) {
  std::map<DType, std::int64_t> elements;
  for (const auto& [file, tensors] : shards) {
    for (const OutputTensor& tensor : tensors) {
      if (is_floating(tensor.dtype)) elements[tensor.dtype] += tensor.shape.numel();
    }
  }
  const auto most = std::ranges::max_element(elements, {}, &std::pair<const DType, std::int64_t>::second);
  if (most == elements.end()) return std::nullopt;
  return most->first;
}

}  // namespace

Shards shards_of(std::vector<OutputTensor> outputs, std::optional<std::uint64_t> shard_bytes, const Assets& assets) {
  if (shard_bytes || assets.files().empty()) {
    return cut(std::move(outputs), shard_bytes.value_or(kDefaultShardBytes));
  }
  Shards shards;
  std::string last_file;
  for (const auto& [name, file] : assets.files()) last_file = std::max(last_file, file);
  for (OutputTensor& output : outputs) {
    const auto named = assets.files().find(output.name);
    shards[named == assets.files().end() ? last_file : named->second].push_back(std::move(output));
  }
  return shards;
}

Converted write_whole_folder(const std::filesystem::path& save_dir, const Shards& shards, const CopyWatcher& watcher,
                             const std::function<void(const std::filesystem::path& folder)>& finish) {
  WholeFolder output("--save-dir", save_dir);
  Converted done{.path = save_dir, .files = static_cast<std::int64_t>(shards.size())};
  for (const auto& [file, tensors] : shards) {
    done.tensors += static_cast<std::int64_t>(tensors.size());
    for (const OutputTensor& tensor : tensors) done.bytes += tensor.size_bytes();
  }
  TensorCopy copy(done.bytes, watcher);
  for (const auto& [file, tensors] : shards) {
    std::vector<io::TensorToWrite> content;
    for (const OutputTensor& tensor : tensors) {
      content.push_back({tensor.name, tensor.dtype, tensor.shape, copy.producer(tensor)});
    }
    io::write_safetensors(output.path() / file, std::move(content));
  }
  finish(output.path());
  output.commit();
  done.overflows = copy.overflows();
  return done;
}

Converted write_hf_folder(const std::filesystem::path& save_dir, const Shards& shards, const Assets& assets,
                          const CopyWatcher& watcher, bool untied) {
  return write_whole_folder(save_dir, shards, watcher, [&](const std::filesystem::path& folder) {
    const bool is_single = shards.size() == 1 && shards.begin()->first == "model.safetensors";
    if (!is_single) write_index(folder, shards);
    assets.carry_to(folder, main_dtype(shards), untied);
  });
}

}  // namespace loom::checkpoint
