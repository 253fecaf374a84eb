#include "engine/convert/inspect/opened_checkpoint.h"

#include <system_error>
#include <utility>

#include "engine/checkpoint/manifest_check.h"
#include "engine/convert/find_checkpoint.h"

namespace loom::checkpoint {

namespace fs = std::filesystem;

CheckpointPlace place_of(const fs::path& given) {
  std::error_code error;
  const bool is_file =
      given.extension() == ".safetensors" && fs::exists(given, error) && !fs::is_directory(given, error);
  if (is_file) return {given, CheckpointPlace::Kind::kSafetensors};
  const bool has_weights =
      fs::exists(given / "model.safetensors", error) || fs::exists(given / "model.safetensors.index.json", error);
  if (has_weights && !fs::exists(given / io::kDcpMetadataFile, error)) {
    return {given, CheckpointPlace::Kind::kHuggingFace};
  }
  const fs::path adapters = given / "adapter_model.safetensors";
  if (fs::exists(adapters, error)) return {adapters, CheckpointPlace::Kind::kSafetensors};
  refuse_other_kind(given, "PATH");
  return {find_checkpoint(given, "PATH").path, CheckpointPlace::Kind::kDcp};
}

std::string kind_text(CheckpointPlace::Kind kind) {
  switch (kind) {
    case CheckpointPlace::Kind::kDcp:
      return "checkpoint of torch.distributed.checkpoint";
    case CheckpointPlace::Kind::kHuggingFace:
      return "Hugging Face folder";
    case CheckpointPlace::Kind::kSafetensors:
      break;
  }
  return "safetensors file";
}

OpenedCheckpoint::OpenedCheckpoint(CheckpointPlace place) : place_(std::move(place)) {
  switch (place_.kind) {
    case CheckpointPlace::Kind::kDcp:
      dcp_.emplace(place_.path);
      tensors_ = tensors_of(*dcp_);
      break;
    case CheckpointPlace::Kind::kHuggingFace:
      weights_.emplace(place_.path);
      tensors_ = tensors_of(*weights_);
      break;
    case CheckpointPlace::Kind::kSafetensors:
      file_.emplace(place_.path);
      tensors_ = tensors_of(*file_);
      break;
  }
}

void OpenedCheckpoint::check_whole() {
  if (dcp_) checkpoint::check_whole(*dcp_);
}

}  // namespace loom::checkpoint
