// The folder that --save writes for a model the engine knows nothing of. Private to engine/train.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.h"
#include "engine/train/arguments.h"

namespace loom::train {

// model.safetensors with whole parameters under their paths; beside it the config.json of --init-from-hf-path, where
// one was given, which says "tie_word_embeddings": false after --untie-embeddings-and-output-weights. Index and shards
// of an earlier model in the folder are removed once the new weights are there.
void save_model_folder(const std::filesystem::path& folder, const TrainArguments& arguments,
                       const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace loom::train
