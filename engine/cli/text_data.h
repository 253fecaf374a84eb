// The data of `shardloom train` and `plan`: bytes of files, or samples of .bin/.idx pairs with what a tokenizer says of
// their ids. Private to engine/cli.
//
// Errors   ConfigError: pairs with a flag of bytes or the other way round, a tokenizer that is missing or broken, or
//          whose ids the model has no rows for; those of the data sets.
#pragma once

#include <filesystem>
#include <optional>

#include "engine/data/step.h"
#include "engine/train/arguments.h"

namespace loom::cli {

// The folder of the tokenizer whose ids the data has: --tokenizer-name-or-path, else the model's where it has a
// tokenizer.json. None for bytes, and where there is none.
std::optional<std::filesystem::path> tokenizer_folder(const train::TrainArguments& arguments);

// Before anything is built.
void check_text_data(const train::TrainArguments& arguments, std::int64_t vocab_size);

data::DataLoaders text_data_loaders(const train::TrainArguments& arguments);

}  // namespace loom::cli
