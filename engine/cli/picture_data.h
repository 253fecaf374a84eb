// The loaders of --mm-data: conversations with pictures, for `shardloom train` and `plan`. Private to engine/cli.
//
// Model    Qwen-VL takes dataset_type huggingface, InternVL multimodal.
// Grids    are lists of whole numbers in the batches, which a dry run reads too.
// Errors   ConfigError: a file that does not describe data of the model; a program that is built without LOOM_IMAGES.
#pragma once

#include <filesystem>

#include "engine/data/step.h"
#include "engine/train/sections.h"

namespace loom::cli {

data::DataLoaders picture_loaders(const train::TrainSections& job);

// Of --image-size, for a plan: sequences with pictures, shapes without values. The processor is that of the model's
// folder, or without one that of the published models.
data::DataLoaders planned_pictures(const train::TrainSections& job);

// The folder whose tokenizer and picture processor that data has (model_name_or_path).
std::filesystem::path picture_model_folder(const train::TrainSections& job);

}  // namespace loom::cli
