// What --save writes. Private to engine/train.
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

// In which type a parameter is written: what --save-dtype asks for, or as it was loaded (a bf16 or fp16 tensor; one
// whose name the folder spells differently: what most of the folder is). A parameter that is not fp32 stays as it is.
DType dtype_to_save(const std::string& path, DType trained, SaveDType asked, const io::HfWeights* loaded);

// The folder of a model without save_model of its own: model.safetensors with `tensors` under their paths, a
// config.json (that of --init-from-hf-path, else what the model's mixin gives), and what carry_files() takes over from
// the folder of `loaded`, unless that is null. Index and shards of an earlier model in the folder are removed once the
// new weights are there.
void save_model_folder(const std::filesystem::path& folder, const models::ModelOptions& options,
                       const nn::Module& model, const io::HfWeights* loaded,
                       const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace loom::train
