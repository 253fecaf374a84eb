// The folder that --save writes for a model the engine knows nothing of.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/arguments.h"
#include "engine/tensor/tensor.h"

namespace loom::train {

// model.safetensors with whole parameters under their paths; beside it the config.json of --init-from-hf-path, where
// one was given, which says "tie_word_embeddings": false after --untie-embeddings-and-output-weights.
void save_model_folder(const std::filesystem::path& folder, const TrainArguments& arguments,
                       const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace loom::train
