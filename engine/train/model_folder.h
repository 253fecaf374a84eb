// The model folder that --save writes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/module.h"
#include "engine/train/sections.h"

namespace loom::train {

// The dtype in which a parameter is written: as --save-dtype selects, or as it was loaded (a bf16 or fp16 tensor; if
// the folder spells its name differently, the folder's prevailing type). Parameters that are neither fp32 nor bf16 stay
// as they are; those trained in bf16 are written so unless fp32 is selected.
DType dtype_to_save(const std::string& path, DType trained, SaveDType asked, const io::HfWeights* loaded);

// Writes the folder of a model without a save_model of its own: model.safetensors with `tensors` under their paths, a
// config.json (from --init-from-hf-path, else from the model's mixin), and the files that carry_files() takes over from
// the folder of `loaded`, unless it is null. Index and shards of an earlier model in the folder are removed once the
// new weights are there.
void save_model_folder(const std::filesystem::path& folder, const models::ModelOptions& options,
                       const nn::Module& model, const io::HfWeights* loaded,
                       const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace loom::train
