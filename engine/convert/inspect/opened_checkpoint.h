// OpenedCheckpoint: tensors and values of a path, whatever it is: a checkpoint of torch.distributed.checkpoint, a
// folder of checkpoints, a Hugging Face folder, a safetensors file.
//
// Threads  one thread at a time.
// Errors   ConfigError for a path that is none of these; io::FileDamage and ConfigError of the readers for files that
//          are damaged.
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

// Where a path leads, by what is there; nothing is read but names.
struct CheckpointPlace {
  enum class Kind { kDcp, kHuggingFace, kSafetensors };

  std::filesystem::path path;  // of a checkpoint, in a folder of them
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
  // Of a checkpoint with a manifest: every byte (manifest_check.h).
  void check_whole();
  // Null but for kDcp.
  const io::DcpFolder* dcp() const { return dcp_ ? &*dcp_ : nullptr; }

 private:
  const CheckpointPlace place_;
  std::optional<io::DcpFolder> dcp_;
  std::optional<io::HfWeights> weights_;
  std::optional<io::SafetensorsFile> file_;
  TensorList tensors_;
};

}  // namespace loom::checkpoint
