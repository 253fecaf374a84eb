// OpenedCheckpoint: tensors and values of a path of any kind: a checkpoint of torch.distributed.checkpoint, a
// folder of checkpoints, a Hugging Face folder, a safetensors file.
//
// Threads  one thread at a time.
// Errors   ConfigError for a path that is none of these; the readers' io::FileDamage and ConfigError for
//          damaged files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "engine/convert/tensor_source.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/formats/safetensors/safetensors.h"

namespace loom::checkpoint {

// The kind of checkpoint at a path, by the files there; only names are read.
struct CheckpointPlace {
  enum class Kind { kDcp, kHuggingFace, kSafetensors };

  std::filesystem::path path;  // of a checkpoint, also inside a folder of checkpoints
  Kind kind = Kind::kDcp;
};
CheckpointPlace place_of(const std::filesystem::path& given);
// "checkpoint of torch.distributed.checkpoint".
std::string kind_text(CheckpointPlace::Kind kind);

class OpenedCheckpoint {
 public:
  explicit OpenedCheckpoint(CheckpointPlace place);

  const CheckpointPlace& place() const { return place_; }
  const TensorList& tensors() const { return tensors_; }
  // Checks every byte of a checkpoint with a manifest (manifest_check.h).
  void check_whole();
  // Null except for kDcp.
  const io::DcpFolder* dcp() const { return dcp_ ? &*dcp_ : nullptr; }

 private:
  const CheckpointPlace place_;
  std::optional<io::DcpFolder> dcp_;
  std::optional<io::HfWeights> weights_;
  std::optional<io::SafetensorsFile> file_;
  TensorList tensors_;
};

}  // namespace loom::checkpoint
