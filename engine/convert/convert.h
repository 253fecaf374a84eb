// The options and the result of a conversion of weights.
//
// HfToDcp   a Hugging Face folder as FOLDER/release of a folder of checkpoints: tensors under "model." + their name in
//           the checkpoint, and checkpoint_version. One checkpoint file for each file of weights.
// DcpToHf   the tensors below "model." as a Hugging Face folder, with the files of an assets folder: config.json,
//           tokenizer, generation, chat template, code that config.json names. Other parts of the checkpoint stay out.
//           A checkpoint of LoRA adapters: peft's folder; the assets folder is the base's and gives its names.
// DcpToDcp  a checkpoint with its tensors cut along dim 0 for another number of ranks, as FSDP2 cuts them.
// Names     in the checkpoint: see NameRules. Names of ties and fused weights are the names in the Hugging Face folder.
// Outputs   appear whole or not at all; nothing is overwritten.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/convert/output_tensor.h"
#include "engine/core/dtype.h"

namespace loom::checkpoint {

inline constexpr std::uint64_t kDefaultShardBytes = 5'000'000'000;

// hf_prefix given: dcp_prefix replaces it at the beginning of a Hugging Face name; other names stay. Else
// dcp_prefix is put in front of every name.
struct NameRules {
  std::string hf_prefix;
  std::string dcp_prefix;

  std::string to_dcp(std::string_view hf_name) const;
  // Nothing if no Hugging Face name gives it, or two would.
  std::optional<std::string> to_hf(std::string_view dcp_name) const;
};

struct WeightOptions {
  NameRules names;
  std::vector<std::pair<std::string, std::string>> ties;  // target, source: one tensor under two names
  // Weights of experts [E, in, out] that are [E * in, out] in the checkpoint: the last parts of a tensor's name, or
  // any parts in a row ("experts.gate_up_proj").
  std::vector<std::string> fused_linear_names;
  std::optional<DType> dtype;  // of floating tensors; none: unchanged
};

struct HfToDcp : WeightOptions {
  std::filesystem::path hf_dir;
  std::filesystem::path dcp_dir;
};

struct DcpToHf : WeightOptions {
  std::filesystem::path load_dir;
  std::filesystem::path save_dir;
  std::filesystem::path model_assets_dir;
  // None: the files of the assets' index, or else of kDefaultShardBytes.
  std::optional<std::uint64_t> shard_bytes;
};

struct DcpToDcp {
  std::filesystem::path load_dir;
  std::filesystem::path save_dir;
  int world_size = 1;
  bool no_optim = false;  // omits everything below "optimizer."
};

struct Converted {
  std::filesystem::path path = {};  // of the checkpoint, or of the Hugging Face folder
  std::int64_t tensors = 0;
  std::int64_t files = 0;     // of tensors; files of ranks without rows are empty
  std::uint64_t bytes = 0;    // of tensors
  std::int64_t left_out = 0;  // items of the checkpoint that are no weights, or not selected
  std::vector<Overflow> overflows = {};
};

// Reading and writing proceed in pieces: memory does not depend on the sizes of tensors or files. ConfigError for
// invalid input of the user, with missing, unexpected and similar names; io::FileDamage for a damaged input.
Converted convert(const HfToDcp& options, const CopyWatcher& watcher = {});
Converted convert(const DcpToHf& options, const CopyWatcher& watcher = {});
Converted convert(const DcpToDcp& options, const CopyWatcher& watcher = {});

}  // namespace loom::checkpoint
