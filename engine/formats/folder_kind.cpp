#include "engine/formats/folder_kind.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "engine/core/shown_text.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;

struct Holds {
  bool is_there = false;
  bool model = false;
  bool adapters = false;
  bool checkpoints = false;
  bool megatron_ranks = false;
};

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) entries.push_back(*at);
  return entries;
}

bool is_megatron_rank(const fs::directory_entry& entry) {
  return entry.path().filename().string().starts_with("mp_rank_");
}

void look(const fs::directory_entry& entry, Holds& holds) {
  const std::string name = entry.path().filename().string();
  holds.model |= name == "config.json" || name.starts_with("model.safetensors");
  holds.adapters |= name == "adapter_config.json";
  holds.checkpoints |= name == kDcpMetadataFile;
  holds.megatron_ranks |= is_megatron_rank(entry);
  std::error_code error;
  if ((name != "release" && !name.starts_with("iter_")) || !entry.is_directory(error)) return;
  if (std::ranges::any_of(entries_of(entry.path()), is_megatron_rank)) {
    holds.megatron_ranks = true;
  } else {
    holds.checkpoints = true;
  }
}

Holds contents_of(const fs::path& path) {
  std::error_code error;
  Holds holds{.is_there = fs::exists(path, error)};
  for (const fs::directory_entry& entry : entries_of(path)) look(entry, holds);
  return holds;
}

// "Qwen/Qwen2.5-0.5B": an owner and a name, where no folder of that owner is.
bool is_hub_name(const fs::path& path) {
  const std::string text = path.string();
  const std::string extension = path.extension().string();
  if (extension == ".json" || extension == ".yaml" || extension == ".yml") return false;
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == text.size() || text.front() == '.') return false;
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '/';
  };
  std::error_code error;
  return std::ranges::all_of(text, is_part) && std::ranges::count(text, '/') == 1 &&
         !fs::exists(text.substr(0, slash), error);
}

std::string of_megatron_ranks(const std::string& shown) {
  return fmt::format(
      "holds a checkpoint of Megatron's ranks; make a Hugging Face folder of it, shardloom convert mcore-to-hf "
      "--load-dir {} --save-dir DIR --hf-cfg-dir MODEL, and ",
      shown);
}

}  // namespace

std::string why_no_model(const fs::path& path) {
  const Holds holds = contents_of(path);
  const std::string shown = escaped(path.string());
  if (holds.model) return {};
  if (holds.adapters) {
    return fmt::format(
        "holds LoRA adapters and no model; give the model that they were trained on, and this folder as --lora-load, "
        "or join the two: shardloom merge --base MODEL --adapter {} --save DIR",
        shown);
  }
  if (holds.megatron_ranks) return of_megatron_ranks(shown) + "give that folder";
  if (holds.checkpoints) {
    return fmt::format(
        "holds checkpoints of a run and no Hugging Face folder; make one, shardloom convert dcp-to-hf --load-dir {} "
        "--save-dir DIR --model-assets-dir MODEL, and give that folder",
        shown);
  }
  if (holds.is_there || !is_hub_name(path)) return {};
  return fmt::format(
      "is not there; it may be a name on the Hugging Face hub, from which nothing is fetched here: huggingface-cli "
      "download {} --local-dir DIR, and give that folder",
      shown);
}

std::string why_no_checkpoint(const fs::path& path, ModelFlags flags) {
  const Holds holds = contents_of(path);
  const std::string shown = escaped(path.string());
  const bool training = flags == ModelFlags::kOfTraining;
  if (holds.checkpoints) return {};
  if (holds.megatron_ranks) {
    return of_megatron_ranks(shown) + (training ? "give that folder as --init-from-hf-path" : "give that folder");
  }
  if (holds.model) {
    return training ? fmt::format(
                          "is a Hugging Face folder and no checkpoint; to begin with its weights, give it as "
                          "--init-from-hf-path {}",
                          shown)
                    : fmt::format(
                          "is a Hugging Face folder and no checkpoint; to make one of it: shardloom convert "
                          "hf-to-dcp --hf-dir {} --dcp-dir DIR",
                          shown);
  }
  if (!holds.adapters) return {};
  return training ? fmt::format("holds LoRA adapters and no checkpoint; to begin with them, give it as --lora-load {}",
                                shown)
                  : fmt::format(
                        "holds LoRA adapters and no checkpoint; to add them to their model: shardloom merge "
                        "--base MODEL --adapter {} --save DIR",
                        shown);
}

}  // namespace loom::io
