#include "engine/train/model_folder.h"

#include <span>

#include "engine/core/error.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_file.h"
#include "models/hf/folder_files.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {
namespace {

// Empty: unknown.
std::string config_of(const models::ModelOptions& options, const nn::Module& model) {
  if (options.init_from_hf_path) {
    const auto path = *options.init_from_hf_path / "config.json";
    if (std::filesystem::exists(path)) return models::file_text(path);
  }
  const auto* mixin = dynamic_cast<const models::FSDP2Mixin*>(&model);
  return mixin == nullptr ? std::string{} : mixin->config_json();
}

bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

}  // namespace

DType dtype_to_save(const std::string& path, DType trained, SaveDType asked, const io::HfWeights* loaded) {
  if (trained != DType::kF32 && trained != DType::kBF16) return trained;
  if (asked == SaveDType::kFp32) return DType::kF32;
  if (asked == SaveDType::kBf16) return DType::kBF16;
  if (loaded == nullptr || trained == DType::kBF16) return trained;
  const io::StoredTensor* stored = loaded->find(path);
  const DType dtype = stored != nullptr ? stored->dtype : models::main_dtype(*loaded).value_or(trained);
  return is_half(dtype) ? dtype : trained;
}

void save_model_folder(const std::filesystem::path& folder, const models::ModelOptions& options,
                       const nn::Module& model, const io::HfWeights* loaded,
                       const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::filesystem::create_directories(folder);
  std::vector<io::TensorToWrite> stored;
  for (const auto& [name, tensor] : tensors) {
    const std::span bytes(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes()));
    stored.push_back({name, tensor.dtype(), tensor.shape(), bytes});
  }
  io::write_safetensors(folder / "model.safetensors", std::move(stored));
  io::remove_earlier_shards(folder);
  if (const std::string config = config_of(options, model); !config.empty()) {
    io::write_text(folder / "config.json",
                   models::edited_config(config, {.untied = options.untie_embeddings_and_output_weights,
                                                  .dtype = models::main_dtype(tensors)}));
  }
  if (loaded != nullptr) models::carry_files(loaded->folder(), folder);
}

}  // namespace loom::train
