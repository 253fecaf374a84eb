// McoreOutput: a checkpoint in a folder of Megatron's checkpoints, written file by file beside its place: it appears
// whole, and then the tracker names it. Private to engine/convert.
//
// Refused  a folder that already has a tracker or a checkpoint of that name.
// Threads  one thread at a time.
// Errors   ConfigError for the folder; Error if writing fails. An object destroyed before commit() removes
//          its files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/formats/torch/torch_file.h"
#include "engine/io/output_lock.h"

namespace loom::checkpoint {

inline constexpr const char* kMcoreFile = "model_optim_rng.pt";
inline constexpr double kMegatronVersion = 3.0;  // checkpoint_version

// "mp_rank_00", "mp_rank_00_001", "mp_rank_00_001_002"; stage and expert rank if there is more than one.
std::string mcore_rank_name(int tensor_rank, std::optional<int> stage, std::optional<int> expert_rank);

class McoreOutput {
 public:
  McoreOutput(const std::string& flag, const std::filesystem::path& folder, CheckpointId id);
  ~McoreOutput();
  McoreOutput(const McoreOutput&) = delete;
  McoreOutput& operator=(const McoreOutput&) = delete;

  void write(const std::string& rank_name, const std::vector<io::TorchEntry>& entries);
  // The path of the checkpoint.
  std::filesystem::path commit();

 private:
  const CheckpointFolder folder_;
  const CheckpointId id_;
  io::OutputLock lock_;
  std::filesystem::path temporary_;
};

}  // namespace loom::checkpoint
