// The data of `shardloom train` and `plan`: bytes of files, or samples of .bin/.idx pairs with what a tokenizer says of
// their ids. Private to engine/cli.
//
// Errors   ConfigError: pairs with a flag of bytes or the other way round, a tokenizer that is missing or broken, or
//          whose ids the model has no rows for; those of the data sets.
#pragma once

#include <filesystem>
#include <optional>

#include "engine/data/step.h"
#include "engine/data/token_batches.h"
#include "engine/train/sections.h"

namespace loom::cli {

// The folder of the tokenizer whose ids the data has: --tokenizer-name-or-path, else the model's where it has a
// tokenizer.json. None for bytes, and where there is none.
std::optional<std::filesystem::path> tokenizer_folder(const data::DataOptions& data,
                                                      const models::ModelOptions& model_options);

// What that tokenizer says of ids; nothing where there is none. Before anything is built: ConfigError where the model,
// whose vocab_size is 0 if it is not known, has fewer rows than the tokenizer ids.
data::TokenIds text_ids(const train::TrainSections& arguments, std::int64_t vocab_size);

data::DataLoaders text_data_loaders(const data::DataOptions& data, const train::ScheduleOptions& schedule,
                                    const data::TokenIds& ids);

}  // namespace loom::cli
